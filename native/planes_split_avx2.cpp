// Elements to planes and back with AVX2.
#include <immintrin.h>

#define PERDURE_TARGET __attribute__((target("avx2")))
#define PERDURE_INLINE PERDURE_TARGET __attribute__((always_inline)) inline

#include "planes_vectors.h"

namespace perdure::planes {

namespace {

struct Avx2 {
    using Vector = __m256i;
    static constexpr std::size_t kLanes = 2;

    PERDURE_INLINE static Vector load(const u8* at) { return _mm256_loadu_si256(reinterpret_cast<const Vector*>(at)); }
    PERDURE_INLINE static void store(u8* at, Vector v) { _mm256_storeu_si256(reinterpret_cast<Vector*>(at), v); }
    PERDURE_INLINE static Vector all(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
    PERDURE_INLINE static Vector exclusive(Vector a, Vector b) { return _mm256_xor_si256(a, b); }
    // The bits of `a` where `mask` has one, else those of `b`.
    PERDURE_INLINE static Vector select(Vector mask, Vector a, Vector b) {
        return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
    }
    template <int kBy>
    PERDURE_INLINE static Vector left16(Vector v) { return _mm256_slli_epi16(v, kBy); }
    template <int kBy>
    PERDURE_INLINE static Vector right16(Vector v) { return _mm256_srli_epi16(v, kBy); }

    template <unsigned kWidth>
    PERDURE_INLINE static Vector minus(Vector a, Vector b) {
        return kWidth == 2 ? _mm256_sub_epi16(a, b) : _mm256_sub_epi32(a, b);
    }
    template <unsigned kWidth>
    PERDURE_INLINE static Vector plus(Vector a, Vector b) {
        return kWidth == 2 ? _mm256_add_epi16(a, b) : _mm256_add_epi32(a, b);
    }
    template <unsigned kWidth>
    PERDURE_INLINE static Vector sign(Vector v) {
        return kWidth == 2 ? _mm256_srai_epi16(v, 15) : _mm256_srai_epi32(v, 31);
    }
    template <unsigned kWidth>
    PERDURE_INLINE static Vector ordered(Vector v) {
        const Vector magnitude = kWidth == 2 ? _mm256_set1_epi16(0x7fff) : _mm256_set1_epi32(0x7fffffff);
        return exclusive(v, _mm256_and_si256(sign<kWidth>(v), magnitude));
    }
    // 0, -1, 1, -2 ... to 0, 1, 2, 3 ... and back.
    template <unsigned kWidth>
    PERDURE_INLINE static Vector folded(Vector v) { return exclusive(plus<kWidth>(v, v), sign<kWidth>(v)); }
    template <unsigned kWidth>
    PERDURE_INLINE static Vector unfolded(Vector v) {
        const Vector half = kWidth == 2 ? _mm256_srli_epi16(v, 1) : _mm256_srli_epi32(v, 1);
        const Vector one = kWidth == 2 ? _mm256_set1_epi16(1) : _mm256_set1_epi32(1);
        return exclusive(half, minus<kWidth>(_mm256_setzero_si256(), _mm256_and_si256(v, one)));
    }

    // In each lane, the most significant bytes of its elements, then the next ones.
    template <unsigned kWidth>
    PERDURE_INLINE static Vector grouped(Vector v) {
        const __m128i order = kWidth == 2 ? _mm_setr_epi8(1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14)
                                          : _mm_setr_epi8(3, 7, 11, 15, 2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12);
        return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order));
    }
    PERDURE_INLINE static Vector low8(Vector a, Vector b) { return _mm256_unpacklo_epi8(a, b); }
    PERDURE_INLINE static Vector high8(Vector a, Vector b) { return _mm256_unpackhi_epi8(a, b); }
    PERDURE_INLINE static Vector low16(Vector a, Vector b) { return _mm256_unpacklo_epi16(a, b); }
    PERDURE_INLINE static Vector high16(Vector a, Vector b) { return _mm256_unpackhi_epi16(a, b); }
    PERDURE_INLINE static Vector low32(Vector a, Vector b) { return _mm256_unpacklo_epi32(a, b); }
    PERDURE_INLINE static Vector high32(Vector a, Vector b) { return _mm256_unpackhi_epi32(a, b); }
    PERDURE_INLINE static Vector low64(Vector a, Vector b) { return _mm256_unpacklo_epi64(a, b); }
    PERDURE_INLINE static Vector high64(Vector a, Vector b) { return _mm256_unpackhi_epi64(a, b); }
    PERDURE_INLINE static Vector spread4(Vector v) {
        return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    }
    PERDURE_INLINE static Vector together4(Vector v) {
        return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }
    PERDURE_INLINE static Vector spread2(Vector v) { return _mm256_permute4x64_epi64(v, 0xd8); }
    PERDURE_INLINE static Vector together2(Vector v) { return spread2(v); }
};

PERDURE_TARGET void split(unsigned width, bool floats, Change change, const u8* x, const u8* base, std::size_t n,
                          u8* const* to) {
    split_most<Avx2>(width, floats, change, x, base, n, to);
}

PERDURE_TARGET void join(unsigned width, bool floats, Change change, const u8* const* planes, const u8* base, std::size_t n,
                         u8* out) {
    join_most<Avx2>(width, floats, change, planes, base, n, out);
}

}  // namespace

const Splitter kAvx2Splitter{split, join};

}  // namespace perdure::planes
