// The coder with AVX2: the 64 lanes of a group in two registers.
//
// The same steps as in rans_avx512.h. What AVX2 lacks is made of other things: a table of more than 16 bytes is looked up 16
// at a time (the shuffle gives 0 for an index of 128 and more), bytes are compressed and expanded 8 at a time by a shuffle
// from a table, 16-bit shifts by a count for each lane are multiplications, and which class a slot belongs to is read lane by
// lane. Enabled function by function, for the reason given in xxh3_avx2.cpp.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "rans.h"

#define PERDURE_TARGET __attribute__((target("avx2,popcnt")))
#define PERDURE_INLINE PERDURE_TARGET __attribute__((always_inline)) inline

namespace perdure::rans::avx2 {

std::size_t ulp_classify(const u8* x, const u8* base, std::size_t n, const View& view, unsigned contexts, u8* index, u8* raw,
                         u8* literals, u32* counts);
std::size_t byte_classify(const u8* bytes, std::size_t n, const Ranges& ranges, u8* index, u8* raw, u8* literals,
                          u32* counts);
bool byte_decode(ByteReader* const* readers, unsigned count, std::size_t n, Ahead ahead, u8* const* out);
void encode(const u8* index, const u8* raw, std::size_t n_padded, const Model& model, Ahead ahead, u8* symbols, u8* raws,
            u8* states, std::size_t& n_symbols, std::size_t& n_raws);

using Vector = __m256i;

inline constexpr int kHalves = 2;

// For every 8 bits: where the set ones are (to compress), and how many are set before each set one (to expand).
struct Shuffles {
    u8 compress[256][8], expand[256][8];
    constexpr Shuffles() : compress(), expand() {
        for (unsigned bits = 0; bits < 256; ++bits) {
            u8 n = 0;
            for (u8 i = 0; i < 8; ++i) compress[bits][i] = expand[bits][i] = 0x80;
            for (u8 i = 0; i < 8; ++i) {
                if ((bits >> i & 1) == 0) continue;
                expand[bits][i] = n;
                compress[bits][n++] = i;
            }
        }
    }
};
inline constexpr Shuffles kShuffles;

PERDURE_INLINE Vector load(const void* at) { return _mm256_loadu_si256(static_cast<const Vector*>(at)); }
PERDURE_INLINE void store(void* at, Vector v) { _mm256_storeu_si256(static_cast<Vector*>(at), v); }
PERDURE_INLINE Vector table16(const u8* at) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
PERDURE_INLINE Vector all(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
PERDURE_INLINE Vector even(Vector bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi16(0xff)); }
PERDURE_INLINE Vector odd(Vector bytes) { return _mm256_srli_epi16(bytes, 8); }
PERDURE_INLINE Vector upper(Vector words) { return _mm256_andnot_si256(_mm256_set1_epi16(0xff), words); }

// Two vectors of words to one of bytes, and back: `a` is in the even bytes, `b` in the odd ones.
PERDURE_INLINE Vector low_bytes(Vector a, Vector b) { return _mm256_or_si256(even(a), _mm256_slli_epi16(b, 8)); }
PERDURE_INLINE Vector high_bytes(Vector a, Vector b) { return _mm256_or_si256(odd(a), upper(b)); }
PERDURE_INLINE Vector even_words(Vector low, Vector high) { return low_bytes(low, high); }
PERDURE_INLINE Vector odd_words(Vector low, Vector high) { return high_bytes(low, high); }
PERDURE_INLINE Vector at_least(Vector a, Vector b) { return _mm256_cmpeq_epi8(_mm256_max_epu8(a, b), a); }

struct States {
    Vector low[kHalves], high[kHalves];
};

// Take a byte into the states that are below 256.
PERDURE_INLINE void take(States& states, const u8*& at) {
    Vector empty[kHalves];
    u64 lanes = 0;
    for (int half = 0; half < kHalves; ++half) {
        empty[half] = _mm256_cmpeq_epi8(states.high[half], _mm256_setzero_si256());
        lanes |= static_cast<u64>(static_cast<unsigned>(_mm256_movemask_epi8(empty[half]))) << 32 * half;
    }
    at -= _mm_popcnt_u64(lanes);
    const u8* from = at;
    __m128i eights[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        const auto bits = static_cast<unsigned>(lanes >> 8 * i & 0xff);
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
        const __m128i where = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kShuffles.expand[bits]));
        eights[i] = _mm_shuffle_epi8(bytes, where);
        from += _mm_popcnt_u32(bits);
    }
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {  // put together in registers: a load of several small stores has to wait
        const __m128i* four = eights + 4 * half;
        const Vector taken = _mm256_set_m128i(_mm_unpacklo_epi64(four[2], four[3]), _mm_unpacklo_epi64(four[0], four[1]));
        states.high[half] = _mm256_blendv_epi8(states.high[half], states.low[half], empty[half]);
        states.low[half] = _mm256_blendv_epi8(states.low[half], taken, empty[half]);
    }
}

// Words shifted right: times this / 2^16, and 0 stands for all of it.
PERDURE_INLINE Vector shifted(Vector x, Vector times) {
    return _mm256_or_si256(_mm256_mulhi_epu16(x, times),
                           _mm256_and_si256(x, _mm256_cmpeq_epi16(times, _mm256_setzero_si256())));
}

// Tables by cell, 16 bytes a context. `Picks` are the indices that find something in the table of one context alone.
template <int kContexts>
struct Picks {
    Vector of[kContexts];
    PERDURE_INLINE explicit Picks(Vector cells) {
        for (int c = 0; c < kContexts; ++c) {
            of[c] = _mm256_adds_epu8(_mm256_xor_si256(cells, all(16 * c)), all(0x70));
        }
    }
    PERDURE_INLINE Vector in(const u8* table) const {
        Vector found = _mm256_shuffle_epi8(table16(table), of[0]);
        for (int c = 1; c < kContexts; ++c) {
            found = _mm256_or_si256(found, _mm256_shuffle_epi8(table16(table + 16 * c), of[c]));
        }
        return found;
    }
};

template <unsigned kWidth, unsigned kShift>
struct Elements {
    static constexpr short kMagnitude = kWidth == 1 ? 0x7f : 0x7fff;

    PERDURE_INLINE static Vector words(const u8* at) {
        if constexpr (kWidth == 2) return load(at);
        return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    }
    PERDURE_INLINE static void put(u8* at, Vector words) {
        if constexpr (kWidth == 2) {
            store(at, words);
        } else {
            const Vector bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(even(words), even(words)), 0x08);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_castsi256_si128(bytes));
        }
    }
    PERDURE_INLINE static Vector ordered(Vector bits) {
        return _mm256_xor_si256(bits, _mm256_and_si256(_mm256_srai_epi16(bits, 15), _mm256_set1_epi16(kMagnitude)));
    }
};

// Bins to 16 * context: how many contexts begin at or below them.
struct Contexts {
    Vector first;
    Vector begin[kMaxContexts - 1];
    int n = 0;

    PERDURE_INLINE explicit Contexts(const View& view) : first(all(view.first)) {
        for (int bin = 1; bin < 64 && n < static_cast<int>(kMaxContexts) - 1; ++bin) {
            if (view.context[bin] != view.context[bin - 1]) begin[n++] = all(bin);
        }
    }
    template <unsigned kShift>
    PERDURE_INLINE Vector of(Vector base0, Vector base1) const {
        Vector bins = low_bytes(_mm256_srli_epi16(base0, kShift), _mm256_srli_epi16(base1, kShift));
        if constexpr (kShift == 7) {
            bins = _mm256_min_epu8(_mm256_subs_epu8(bins, first), all(63));
        } else {
            bins = _mm256_and_si256(bins, all(63));
        }
        Vector context = _mm256_setzero_si256();
        for (int i = 0; i < n; ++i) {
            context = _mm256_add_epi8(context, _mm256_and_si256(at_least(bins, begin[i]), all(16)));
        }
        return context;
    }
};

// Call `visit(element)` for the elements whose lanes are set, in their order: even lanes are the first 32, odd ones the others.
template <class Visit>
inline void each_element(u64 lanes, const Visit& visit) {
    for (unsigned odd = 0; odd < 2; ++odd) {
        for (u64 left = lanes >> odd & 0x5555555555555555; left != 0; left &= left - 1) {
            visit(static_cast<std::size_t>(__builtin_ctzll(left) / 2) + 32 * odd);
        }
    }
}

}  // namespace perdure::rans::avx2
