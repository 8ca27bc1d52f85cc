// The block loop with AVX-512: the eight lanes in one register, all keys of a block in registers too.
//
// Enabled function by function, for the reason given in xxh3_avx2.cpp.
#include <immintrin.h>

#include "xxh3_loop.h"
#include "xxh3_parts.h"

#define PERDURE_AVX512 __attribute__((target("avx512f"), always_inline)) inline

namespace perdure::xxh3 {

namespace {

PERDURE_AVX512 __m512i accumulate(__m512i lanes, __m512i words, __m512i key) {
    const __m512i value = _mm512_xor_si512(words, key);
    const __m512i product = _mm512_mul_epu32(value, _mm512_srli_epi64(value, 32));
    const __m512i crossed = _mm512_shuffle_epi32(words, _MM_PERM_BADC);  // each word to its neighbour's lane
    return _mm512_add_epi64(lanes, _mm512_add_epi64(product, crossed));
}

PERDURE_AVX512 __m512i scramble(__m512i lanes, __m512i key) {
    const __m512i prime = _mm512_set1_epi64(static_cast<long long>(kPrime32_1));
    const __m512i mixed = _mm512_xor_si512(_mm512_xor_si512(lanes, _mm512_srli_epi64(lanes, 47)), key);
    const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
    return _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), _mm512_slli_epi64(high, 32));
}

template <bool kCopy>
__attribute__((target("avx512f"))) void run(u64* lanes, const u8* in, u8* out, std::size_t n_blocks) {
    __m512i acc = _mm512_loadu_si512(lanes);
    __m512i key[kStripes + 1];
#pragma GCC unroll 17
    for (std::size_t s = 0; s <= kStripes; ++s) key[s] = _mm512_loadu_si512(kSecret + 8 * s);
    for (; n_blocks > 0; --n_blocks, in += kStripes * 64) {
#pragma GCC unroll 16
        for (std::size_t s = 0; s < kStripes; ++s) {
            // Past the end of the input the request is ignored: a prefetch never faults.
            _mm_prefetch(reinterpret_cast<const char*>(in) + 64 * s + kAheadBytes, _MM_HINT_T0);
            const __m512i words = _mm512_loadu_si512(in + 64 * s);
            if constexpr (kCopy) _mm512_stream_si512(reinterpret_cast<__m512i*>(out + 64 * s), words);
            acc = accumulate(acc, words, key[s]);
        }
        acc = scramble(acc, key[kStripes]);  // the scramble's key is the secret's last 64 bytes: one step further
        if constexpr (kCopy) out += kStripes * 64;
    }
    _mm512_storeu_si512(lanes, acc);
}

void absorb(u64* lanes, const u8* in, std::size_t n_blocks) { run<false>(lanes, in, nullptr, n_blocks); }

}  // namespace

static_assert(kScrambleAt == 8 * kStripes);

const Loop kAvx512Loop{absorb, run<true>};

}  // namespace perdure::xxh3
