// The loops of `mask` with AVX-512: a comparison is the bits, a compression the values. Needs what rans_avx512.h needs.
#include <immintrin.h>

#include "mask.h"

#define PERDURE_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi2,bmi,bmi2,popcnt")))
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

// 64 elements at a time: `kWidth` vectors whose bits make eight bytes.
template <unsigned kWidth>
PERDURE_TARGET std::size_t pick_width(const u8* x, const u8* base, std::size_t n, u8* bits, u8*& values) {
    u8* at = values;
    const std::size_t whole = n / 64 * 64;
    for (std::size_t i = 0; i < whole; i += 64, bits += 8) {
        u64 all = 0;
#pragma GCC unroll 8
        for (unsigned part = 0; part < kWidth; ++part) {
            const std::size_t byte = i * kWidth + 64 * part;
            _mm_prefetch(reinterpret_cast<const char*>(x + byte + kAhead), _MM_HINT_T0);
            _mm_prefetch(reinterpret_cast<const char*>(base + byte + kAhead), _MM_HINT_T0);
            const __m512i now = _mm512_loadu_si512(x + byte);
            const u64 here = differing<kWidth>(now, _mm512_loadu_si512(base + byte));
            all |= here << (64 / kWidth * part) % 64;
            _mm512_storeu_si512(at, compressed<kWidth>(here, now));
            at += kWidth * static_cast<unsigned>(_mm_popcnt_u64(here));
        }
        __builtin_memcpy(bits, &all, 8);
    }
    values = at;
    return whole;
}

template <unsigned kWidth>
PERDURE_TARGET std::size_t place_width(const u8* bits, const u8*& values, const u8* end, const u8* base, std::size_t n,
                                       u8* out) {
    constexpr u64 kPart = kWidth == 1 ? ~u64{0} : (u64{1} << 64 / kWidth % 64) - 1;
    const u8* at = values;
    std::size_t i = 0;
    // A vector is read at `at` whatever its bits are, so stop while there are at least as many bytes as all could take.
    for (; i + 64 <= n && end - at >= static_cast<std::ptrdiff_t>(64 * kWidth); i += 64, bits += 8) {
        u64 all;
        __builtin_memcpy(&all, bits, 8);
#pragma GCC unroll 8
        for (unsigned part = 0; part < kWidth; ++part) {
            const std::size_t byte = i * kWidth + 64 * part;
            _mm_prefetch(reinterpret_cast<const char*>(base + byte + kAhead), _MM_HINT_T0);
            __builtin_prefetch(out + byte + kAhead, 1);
            const u64 here = all >> (64 / kWidth * part) % 64 & kPart;
            _mm512_storeu_si512(out + byte, expanded<kWidth>(_mm512_loadu_si512(base + byte), here, _mm512_loadu_si512(at)));
            at += kWidth * static_cast<unsigned>(_mm_popcnt_u64(here));
        }
    }
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

std::size_t place(unsigned width, const u8* bits, const u8*& values, const u8* end, const u8* base, std::size_t n, u8* out) {
    switch (width) {
        case 1: return place_width<1>(bits, values, end, base, n, out);
        case 2: return place_width<2>(bits, values, end, base, n, out);
        case 4: return place_width<4>(bits, values, end, base, n, out);
        default: return place_width<8>(bits, values, end, base, n, out);
    }
}

}  // namespace

const Loops kAvx512Loops{pick, place};

}  // namespace perdure::mask
