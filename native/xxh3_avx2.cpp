// The block loop with AVX2: the eight lanes in two registers.
//
// The instructions are enabled function by function and not by a compiler flag for the file, so that nothing inline that
// other files share can be compiled for a processor that may not be there.
#include <immintrin.h>

#include "xxh3_loop.h"
#include "xxh3_parts.h"

#define PERDURE_AVX2 __attribute__((target("avx2"), always_inline)) inline

namespace perdure::xxh3 {

namespace {

PERDURE_AVX2 __m256i load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }

PERDURE_AVX2 __m256i accumulate(__m256i lanes, __m256i words, __m256i key) {
    const __m256i value = _mm256_xor_si256(words, key);
    const __m256i product = _mm256_mul_epu32(value, _mm256_srli_epi64(value, 32));
    const __m256i crossed = _mm256_shuffle_epi32(words, 0x4E);  // each word to its neighbour's lane
    return _mm256_add_epi64(lanes, _mm256_add_epi64(product, crossed));
}

PERDURE_AVX2 __m256i scramble(__m256i lanes, __m256i key) {
    const __m256i prime = _mm256_set1_epi64x(static_cast<long long>(kPrime32_1));
    const __m256i mixed = _mm256_xor_si256(_mm256_xor_si256(lanes, _mm256_srli_epi64(lanes, 47)), key);
    const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(high, 32));
}

template <bool kCopy>
__attribute__((target("avx2"))) void run(u64* lanes, const u8* in, u8* out, std::size_t n_blocks) {
    __m256i a = load(lanes);
    __m256i b = load(lanes + 4);
    for (; n_blocks > 0; --n_blocks, in += kStripes * 64) {
#pragma GCC unroll 16
        for (std::size_t s = 0; s < kStripes; ++s) {
            // Past the end of the input the request is ignored: a prefetch never faults.
            _mm_prefetch(reinterpret_cast<const char*>(in) + 64 * s + kAheadBytes, _MM_HINT_T0);
            const __m256i one = load(in + 64 * s);
            const __m256i two = load(in + 64 * s + 32);
            if constexpr (kCopy) {
                _mm256_stream_si256(reinterpret_cast<__m256i*>(out + 64 * s), one);
                _mm256_stream_si256(reinterpret_cast<__m256i*>(out + 64 * s + 32), two);
            }
            a = accumulate(a, one, load(kSecret + 8 * s));
            b = accumulate(b, two, load(kSecret + 8 * s + 32));
        }
        a = scramble(a, load(kSecret + kScrambleAt));
        b = scramble(b, load(kSecret + kScrambleAt + 32));
        if constexpr (kCopy) out += kStripes * 64;
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes + 4), b);
}

void absorb(u64* lanes, const u8* in, std::size_t n_blocks) { run<false>(lanes, in, nullptr, n_blocks); }

}  // namespace

const Loop kAvx2Loop{absorb, run<true>};

}  // namespace perdure::xxh3
