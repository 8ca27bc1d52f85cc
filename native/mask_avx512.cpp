// The loops of `mask` with AVX-512: a comparison is the bits, a compression the values. Needs what rans_avx512.h needs.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "mask.h"

#define PERDURE_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi,bmi2,popcnt")))
#define PERDURE_INLINE PERDURE_TARGET __attribute__((always_inline)) inline

namespace perdure::mask {

namespace {

using u8 = std::uint8_t;
using u64 = std::uint64_t;

constexpr std::size_t kAhead = 1024;

template <unsigned kWidth>
PERDURE_INLINE u64 differing(__m512i a, __m512i b) {
    if constexpr (kWidth == 1) return _mm512_cmpneq_epi8_mask(a, b);
    if constexpr (kWidth == 2) return _mm512_cmpneq_epi16_mask(a, b);
    if constexpr (kWidth == 4) return _mm512_cmpneq_epi32_mask(a, b);
    return _mm512_cmpneq_epi64_mask(a, b);
}

template <unsigned kWidth>
PERDURE_INLINE __m512i compressed(u64 bits, __m512i v) {
    if constexpr (kWidth == 1) return _mm512_maskz_compress_epi8(bits, v);
    if constexpr (kWidth == 2) return _mm512_maskz_compress_epi16(static_cast<__mmask32>(bits), v);
    if constexpr (kWidth == 4) return _mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), v);
    return _mm512_maskz_compress_epi64(static_cast<__mmask8>(bits), v);
}

template <unsigned kWidth>
PERDURE_INLINE __m512i expanded(__m512i base, u64 bits, __m512i v) {
    if constexpr (kWidth == 1) return _mm512_mask_expand_epi8(base, bits, v);
    if constexpr (kWidth == 2) return _mm512_mask_expand_epi16(base, static_cast<__mmask32>(bits), v);
    if constexpr (kWidth == 4) return _mm512_mask_expand_epi32(base, static_cast<__mmask16>(bits), v);
    return _mm512_mask_expand_epi64(base, static_cast<__mmask8>(bits), v);
}

// The values on their way to memory: put together to lines in a register, and stored around the caches, so that no line is read to
// be overwritten.
class Lines {
public:
    PERDURE_INLINE explicit Lines(u8* to)
        : held_(reinterpret_cast<std::uintptr_t>(to) % 64), line_(to - held_), skip_(held_), bytes_(_mm512_setzero_si512()) {}

    // Append the first `n` bytes of `v`, at most 64; the others of it are 0.
    PERDURE_INLINE void put(__m512i v, unsigned n) {
        const __m512i where = _mm512_sub_epi8(_mm512_load_si512(kCount), _mm512_set1_epi8(static_cast<char>(held_)));
        const __m512i turned = _mm512_permutexvar_epi8(where, v);
        bytes_ = _mm512_mask_mov_epi8(bytes_, ~u64{0} << held_, turned);
        held_ += n;
        if (held_ >= 64) {
            if (skip_ == 0) [[likely]] {
                _mm512_stream_si512(reinterpret_cast<__m512i*>(line_), bytes_);
            } else {
                _mm512_mask_storeu_epi8(line_, ~u64{0} << skip_, bytes_);
                skip_ = 0;
            }
            line_ += 64;
            held_ -= 64;
            bytes_ = turned;
        }
    }
    // Where the next byte lies in memory.
    PERDURE_INLINE u8* finish() {
        _mm512_mask_storeu_epi8(line_, ~u64{0} << skip_ & ~(~u64{0} << held_), bytes_);
        return line_ + held_;
    }

private:
    alignas(64) static constexpr u8 kCount[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                  16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                                  32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                                  48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    u64 held_;
    u8* line_;
    u64 skip_;  // bytes of the first line that are not ours
    __m512i bytes_;
};

// 64 elements at a time: `kWidth` vectors whose bits make eight bytes.
template <unsigned kWidth>
PERDURE_TARGET std::size_t pick_width(const u8* x, const u8* base, std::size_t n, u8* bits, u8*& values) {
    Lines lines(values);
    const std::size_t whole = n / 64 * 64;
    for (std::size_t i = 0; i < whole; i += 64, bits += 8) {
        u64 all = 0;
#pragma GCC unroll 8
        for (unsigned part = 0; part < kWidth; ++part) {
            const std::size_t byte = i * kWidth + 64 * part;
            _mm_prefetch(reinterpret_cast<const char*>(x + byte + kAhead), _MM_HINT_T1);
            _mm_prefetch(reinterpret_cast<const char*>(base + byte + kAhead), _MM_HINT_T1);
            const __m512i now = _mm512_loadu_si512(x + byte);
            const u64 here = differing<kWidth>(now, _mm512_loadu_si512(base + byte));
            all |= here << (64 / kWidth * part) % 64;
            lines.put(compressed<kWidth>(here, now), kWidth * static_cast<unsigned>(_mm_popcnt_u64(here)));
        }
        std::memcpy(bits, &all, 8);
    }
    values = lines.finish();
    return whole;
}

// Lines of `out` are made of two vectors that follow one another, for `out` may begin anywhere in a line.
template <unsigned kWidth, bool kAround>
PERDURE_TARGET std::size_t place_width(const u8* bits, const u8*& values, const u8* end, const u8* base, std::size_t n,
                                       u8* out) {
    constexpr u64 kPart = kWidth == 1 ? ~u64{0} : (u64{1} << 64 / kWidth % 64) - 1;
    const std::size_t skip = (64 - reinterpret_cast<std::uintptr_t>(out) % 64) % 64;
    alignas(64) u8 order[64];
    for (std::size_t i = 0; i < 64; ++i) order[i] = static_cast<u8>(i + skip);
    const __m512i turn = _mm512_load_si512(order);
    __m512i before = _mm512_setzero_si512();
    const u8* at = values;
    u8* line = out + skip - 64;
    std::size_t i = 0;
    // A vector is read at `at` whatever its bits are, so stop while there are at least as many bytes as all could take.
    for (; i + 64 <= n && end - at >= static_cast<std::ptrdiff_t>(64 * kWidth); i += 64, bits += 8) {
        u64 all;
        std::memcpy(&all, bits, 8);
#pragma GCC unroll 8
        for (unsigned part = 0; part < kWidth; ++part, line += 64) {
            const std::size_t byte = i * kWidth + 64 * part;
            _mm_prefetch(reinterpret_cast<const char*>(base + byte + kAhead), _MM_HINT_T0);
            const u64 here = all >> (64 / kWidth * part) % 64 & kPart;
            const __m512i now = expanded<kWidth>(_mm512_loadu_si512(base + byte), here, _mm512_loadu_si512(at));
            at += kWidth * static_cast<unsigned>(_mm_popcnt_u64(here));
            if constexpr (!kAround) {
                _mm512_storeu_si512(out + byte, now);
            } else if (skip == 0) {
                _mm512_stream_si512(reinterpret_cast<__m512i*>(line + 64), now);
            } else if (byte == 0) [[unlikely]] {
                _mm512_storeu_si512(out, now);
            } else {
                _mm512_stream_si512(reinterpret_cast<__m512i*>(line), _mm512_permutex2var_epi8(before, turn, now));
            }
            before = now;
        }
    }
    if (kAround && skip != 0 && i != 0) _mm512_storeu_si512(out + i * kWidth - 64, before);
    values = at;
    return i;
}

std::size_t pick(unsigned width, const u8* x, const u8* base, std::size_t n, u8* bits, u8*& values) {
    switch (width) {
        case 1: return pick_width<1>(x, base, n, bits, values);
        case 2: return pick_width<2>(x, base, n, bits, values);
        case 4: return pick_width<4>(x, base, n, bits, values);
        default: return pick_width<8>(x, base, n, bits, values);
    }
}

template <bool kAround>
std::size_t place(unsigned width, const u8* bits, const u8*& values, const u8* end, const u8* base, std::size_t n, u8* out) {
    switch (width) {
        case 1: return place_width<1, kAround>(bits, values, end, base, n, out);
        case 2: return place_width<2, kAround>(bits, values, end, base, n, out);
        case 4: return place_width<4, kAround>(bits, values, end, base, n, out);
        default: return place_width<8, kAround>(bits, values, end, base, n, out);
    }
}

}  // namespace

const Loops kAvx512Loops{pick, place<false>, place<true>};

}  // namespace perdure::mask
