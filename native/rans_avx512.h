// The coder with AVX-512: 64 lanes an instruction.
//
// Needs VBMI and VBMI2 (permutations and compressions of bytes), BITALG and GFNI: all of them are in every processor since
// 2019 that has the first. Enabled function by function, for the reason given in xxh3_avx2.cpp.
//
// Where 16-bit arithmetic is needed, even byte lanes make one vector of words and odd ones another. For `ulp` lane 2i is
// element i of a group and lane 2i + 1 is element 32 + i, so those two vectors are the elements as they lie in memory.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "rans.h"

#define PERDURE_TARGET \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512bitalg,gfni,bmi,bmi2,popcnt")))
#define PERDURE_INLINE PERDURE_TARGET __attribute__((always_inline)) inline

namespace perdure::rans::avx512 {

std::size_t ulp_classify(const u8* x, const u8* base, std::size_t n, const View& view, unsigned contexts, u8* index, u8* raw,
                         u8* literals, u32* counts);
std::size_t byte_classify(const u8* bytes, std::size_t n, const Ranges& ranges, u8* index, u8* raw, u8* literals,
                          u32* counts);
void encode(const u8* index, const u8* raw, std::size_t n_padded, const Model& model, Ahead ahead, u8* symbols, u8* raws,
            u8* states, std::size_t& n_symbols, std::size_t& n_raws);

using Vector = __m512i;

inline constexpr std::size_t kAhead = 1024;  // how far before its use an input is asked for

PERDURE_INLINE Vector load(const void* at) { return _mm512_loadu_si512(at); }
// A load that stays one: compilers like to make it the operand of an expansion, which from memory takes many times as long.
PERDURE_INLINE Vector load_first(const void* at) {
    Vector v = load(at);
    __asm__("" : "+v"(v));
    return v;
}
PERDURE_INLINE void store(void* at, Vector v) { _mm512_storeu_si512(at, v); }
PERDURE_INLINE Vector table16(const u8* at) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

// Two vectors of words to one of bytes, and back: `a` is in the even bytes, `b` in the odd ones.
PERDURE_INLINE Vector low_bytes(Vector a, Vector b) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0xff), a, _mm512_slli_epi16(b, 8), 0xca);
}
PERDURE_INLINE Vector high_bytes(Vector a, Vector b) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0xff), _mm512_srli_epi16(a, 8), b, 0xca);
}
PERDURE_INLINE Vector even(Vector bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi16(0xff)); }
PERDURE_INLINE Vector odd(Vector bytes) { return _mm512_srli_epi16(bytes, 8); }
// The odd bytes where they are: the upper half of the product of two of these is that of the bytes, without a shift of either.
PERDURE_INLINE Vector tops(Vector bytes) { return _mm512_andnot_si512(_mm512_set1_epi16(0xff), bytes); }
PERDURE_INLINE Vector even_words(Vector low, Vector high) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0xff), low, _mm512_slli_epi16(high, 8), 0xca);
}
PERDURE_INLINE Vector odd_words(Vector low, Vector high) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0xff), _mm512_srli_epi16(low, 8), high, 0xca);
}

// One set of 64 states.
struct States {
    Vector low, high;
};

// Entries by cell: 64 bytes in one register, 128 in two, 16 (one context) in a quarter of one.
template <int kContexts>
struct Cells {
    Vector a, b;
    PERDURE_INLINE static Cells of(const u8* at) {
        if constexpr (kContexts == 1) return {table16(at), _mm512_setzero_si512()};
        return {load(at), kContexts == 8 ? load(at + 64) : _mm512_setzero_si512()};
    }
    PERDURE_INLINE Vector at(Vector cells) const {
        if constexpr (kContexts == 1) return _mm512_shuffle_epi8(a, cells);
        if constexpr (kContexts == 4) return _mm512_permutexvar_epi8(cells, a);
        return _mm512_permutex2var_epi8(a, cells, b);
    }
};

// A table of 256 bytes.
struct Bytes256 {
    Vector part[4];
    PERDURE_INLINE static Bytes256 of(const u8* at) { return {{load(at), load(at + 64), load(at + 128), load(at + 192)}}; }
    PERDURE_INLINE Vector at(Vector index, __mmask64 upper) const {
        return _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(part[0], index, part[1]),
                                      _mm512_permutex2var_epi8(part[2], index, part[3]));
    }
};

template <unsigned kWidth, unsigned kShift>
struct Elements {
    static constexpr short kMagnitude = kWidth == 1 ? 0x7f : 0x7fff;

    // 32 elements as words, with their sign at the top.
    PERDURE_INLINE static Vector words(const u8* at) {
        if constexpr (kWidth == 2) return load(at);
        return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    }
    PERDURE_INLINE static void put(u8* at, Vector words) {
        if constexpr (kWidth == 2) {
            store(at, words);
        } else {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi16_epi8(words));
        }
    }
    PERDURE_INLINE static Vector ordered(Vector bits) {
        return _mm512_ternarylogic_epi32(bits, _mm512_srai_epi16(bits, 15), _mm512_set1_epi16(kMagnitude), 0x78);
    }
    // 16 * context of 64 elements, in lane order.
    PERDURE_INLINE static Vector contexts(Vector base0, Vector base1, Vector first, Vector table) {
        Vector bins = low_bytes(_mm512_srli_epi16(base0, kShift), _mm512_srli_epi16(base1, kShift));
        if constexpr (kShift == 7) {
            bins = _mm512_min_epu8(_mm512_subs_epu8(bins, first), _mm512_set1_epi8(63));
        }  // else the sign is in bit 6, which the permutation does not look at
        return _mm512_permutexvar_epi8(bins, table);
    }
};

}  // namespace perdure::rans::avx512
