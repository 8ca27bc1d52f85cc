// The loops of `mask` with AVX2, which has no compression: eight elements at a time are moved by a shuffle from a table.
//
// Elements of 4 bytes move as eight words, those of 8 bytes as four pairs of words. Enabled function by function, for the reason
// given in xxh3_avx2.cpp.
#include "mask.h"
#include "rans_avx2.h"

namespace perdure::mask {

namespace {

using rans::avx2::kShuffles;
using u8 = std::uint8_t;
using u64 = std::uint64_t;

constexpr std::size_t kAhead = 1024;

PERDURE_INLINE __m128i half(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
PERDURE_INLINE __m128i quarter(const void* at) { return _mm_loadl_epi64(static_cast<const __m128i*>(at)); }
PERDURE_INLINE __m256i whole(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
PERDURE_INLINE void put(void* at, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(at), v); }

// The order of eight bytes as one of eight pairs of bytes, or of eight words; what is to be 0 keeps its highest bit.
PERDURE_INLINE __m128i pairs(const u8* order) {
    const __m128i once = quarter(order), twice = _mm_adds_epu8(once, once);
    return _mm_unpacklo_epi8(twice, _mm_adds_epu8(twice, _mm_set1_epi8(1)));
}
PERDURE_INLINE __m256i words(const u8* order) { return _mm256_cvtepu8_epi32(quarter(order)); }

// Two bits for each of four.
constexpr u8 kTwice[16] = {0x00, 0x03, 0x0c, 0x0f, 0x30, 0x33, 0x3c, 0x3f, 0xc0, 0xc3, 0xcc, 0xcf, 0xf0, 0xf3, 0xfc, 0xff};

// Bit i: element i of the 64 at `x` differs from the one at `base`.
template <unsigned kWidth>
PERDURE_INLINE u64 differing(const u8* x, const u8* base) {
    u64 same = 0;
#pragma GCC unroll 16
    for (unsigned at = 0, bit = 0; at < 64 * kWidth; at += 32, bit += 32 / kWidth) {
        const __m256i a = whole(x + at), b = whole(base + at);
        unsigned here;
        if constexpr (kWidth == 1) {
            here = static_cast<unsigned>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b)));
        } else if constexpr (kWidth == 2) {
            const __m256i equal = _mm256_cmpeq_epi16(a, b);
            const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(equal), _mm256_extracti128_si256(equal, 1));
            here = static_cast<unsigned>(_mm_movemask_epi8(bytes));
        } else if constexpr (kWidth == 4) {
            here = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b))));
        } else {
            here = static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(a, b))));
        }
        same |= u64{here} << bit;
    }
    return ~same;
}

// Write those of the elements at `x` whose bits are set; as many bytes as the group has are touched.
template <unsigned kWidth>
PERDURE_INLINE u8* compress(const u8* x, u64 bits, u8* to) {
    constexpr unsigned kGroup = kWidth == 8 ? 4 : 8;
#pragma GCC unroll 16
    for (unsigned i = 0; i < 64; i += kGroup, x += kGroup * kWidth) {
        const unsigned here = bits >> i & ((1u << kGroup) - 1);
        if constexpr (kWidth == 1) {
            _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(quarter(x), quarter(kShuffles.compress[here])));
        } else if constexpr (kWidth == 2) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(half(x), pairs(kShuffles.compress[here])));
        } else {
            const u8* order = kShuffles.compress[kWidth == 8 ? kTwice[here] : here];
            put(to, _mm256_permutevar8x32_epi32(whole(x), words(order)));
        }
        to += kWidth * static_cast<unsigned>(_mm_popcnt_u32(here));
    }
    return to;
}

// 64 elements: those at `base`, but where bits are set the next ones at `from`.
template <unsigned kWidth>
PERDURE_INLINE const u8* expand(const u8* base, u64 bits, const u8* from, u8* out) {
    constexpr unsigned kGroup = kWidth == 8 ? 4 : 8;
#pragma GCC unroll 16
    for (unsigned i = 0; i < 64; i += kGroup, base += kGroup * kWidth, out += kGroup * kWidth) {
        const unsigned here = bits >> i & ((1u << kGroup) - 1);
        if constexpr (kWidth == 1) {
            const __m128i order = quarter(kShuffles.expand[here]);
            _mm_storel_epi64(reinterpret_cast<__m128i*>(out),
                             _mm_blendv_epi8(_mm_shuffle_epi8(quarter(from), order), quarter(base), order));
        } else if constexpr (kWidth == 2) {
            const __m128i order = pairs(kShuffles.expand[here]);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                             _mm_blendv_epi8(_mm_shuffle_epi8(half(from), order), half(base), order));
        } else {
            const __m256i order = words(kShuffles.expand[kWidth == 8 ? kTwice[here] : here]);
            const __m256 kept = _mm256_castsi256_ps(_mm256_slli_epi32(order, 24));
            const __m256 taken = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(whole(from), order));
            put(out, _mm256_castps_si256(_mm256_blendv_ps(taken, _mm256_castsi256_ps(whole(base)), kept)));
        }
        from += kWidth * static_cast<unsigned>(_mm_popcnt_u32(here));
    }
    return from;
}

template <unsigned kWidth>
PERDURE_INLINE void ask(const u8* at) {
    for (unsigned line = 0; line < 64 * kWidth; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(at + kAhead + line), _MM_HINT_T1);
    }
}

template <unsigned kWidth>
PERDURE_TARGET std::size_t pick_width(const u8* x, const u8* base, std::size_t n, u8* bits, u8*& values) {
    u8* at = values;
    std::size_t i = 0;
    for (; i + 64 <= n; i += 64, bits += 8) {
        const u8 *now = x + i * kWidth, *before = base + i * kWidth;
        ask<kWidth>(now);
        ask<kWidth>(before);
        const u64 all = differing<kWidth>(now, before);
        std::memcpy(bits, &all, 8);
        if (all != 0) at = compress<kWidth>(now, all, at);
    }
    values = at;
    return i;
}

template <unsigned kWidth>
PERDURE_TARGET std::size_t place_width(const u8* bits, const u8*& values, const u8* end, const u8* base, std::size_t n,
                                       u8* out) {
    const u8* at = values;
    std::size_t i = 0;
    // A vector is read at `at` whatever its bits are, so stop while there are at least as many bytes as all could take.
    for (; i + 64 <= n && end - at >= static_cast<std::ptrdiff_t>(64 * kWidth); i += 64, bits += 8) {
        u64 all;
        std::memcpy(&all, bits, 8);
        ask<kWidth>(base + i * kWidth);
        at = expand<kWidth>(base + i * kWidth, all, at, out + i * kWidth);
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

const Loops kAvx2Loops{pick, place, place};

}  // namespace perdure::mask
