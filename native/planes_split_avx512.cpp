// Elements to planes and back with AVX-512. Needs what rans_avx512.h needs.
#include <immintrin.h>

#define PERDURE_TARGET \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,prefer-vector-width=512")))
#define PERDURE_INLINE PERDURE_TARGET __attribute__((always_inline)) inline

#include "planes_vectors.h"

namespace perdure::planes {

namespace {

struct Avx512 {
    using Vector = __m512i;
    static constexpr std::size_t kLanes = 4;

    PERDURE_INLINE static Vector load(const u8* at) { return _mm512_loadu_si512(at); }
    PERDURE_INLINE static void store(u8* at, Vector v) { _mm512_storeu_si512(at, v); }
    PERDURE_INLINE static Vector all(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
    PERDURE_INLINE static Vector exclusive(Vector a, Vector b) { return _mm512_xor_si512(a, b); }
    // The bits of `a` where `mask` has one, else those of `b`.
    PERDURE_INLINE static Vector select(Vector mask, Vector a, Vector b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xca); }
    template <int kBy>
    PERDURE_INLINE static Vector left16(Vector v) { return _mm512_slli_epi16(v, kBy); }
    template <int kBy>
    PERDURE_INLINE static Vector right16(Vector v) { return _mm512_srli_epi16(v, kBy); }

    template <unsigned kWidth>
    PERDURE_INLINE static Vector minus(Vector a, Vector b) {
        return kWidth == 2 ? _mm512_sub_epi16(a, b) : _mm512_sub_epi32(a, b);
    }
    template <unsigned kWidth>
    PERDURE_INLINE static Vector plus(Vector a, Vector b) {
        return kWidth == 2 ? _mm512_add_epi16(a, b) : _mm512_add_epi32(a, b);
    }
    template <unsigned kWidth>
    PERDURE_INLINE static Vector sign(Vector v) {
        return kWidth == 2 ? _mm512_srai_epi16(v, 15) : _mm512_srai_epi32(v, 31);
    }
    template <unsigned kWidth>
    PERDURE_INLINE static Vector ordered(Vector v) {
        const Vector magnitude = kWidth == 2 ? _mm512_set1_epi16(0x7fff) : _mm512_set1_epi32(0x7fffffff);
        return _mm512_ternarylogic_epi32(v, sign<kWidth>(v), magnitude, 0x78);
    }
    // 0, -1, 1, -2 ... to 0, 1, 2, 3 ... and back.
    template <unsigned kWidth>
    PERDURE_INLINE static Vector folded(Vector v) { return exclusive(plus<kWidth>(v, v), sign<kWidth>(v)); }
    template <unsigned kWidth>
    PERDURE_INLINE static Vector unfolded(Vector v) {
        const Vector half = kWidth == 2 ? _mm512_srli_epi16(v, 1) : _mm512_srli_epi32(v, 1);
        const Vector one = kWidth == 2 ? _mm512_set1_epi16(1) : _mm512_set1_epi32(1);
        return exclusive(half, minus<kWidth>(_mm512_setzero_si512(), _mm512_and_si512(v, one)));
    }

    // In each lane, the most significant bytes of its elements, then the next ones.
    template <unsigned kWidth>
    PERDURE_INLINE static Vector grouped(Vector v) {
        const __m128i order = kWidth == 2 ? _mm_setr_epi8(1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14)
                                          : _mm_setr_epi8(3, 7, 11, 15, 2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12);
        return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(order));
    }
    PERDURE_INLINE static Vector low8(Vector a, Vector b) { return _mm512_unpacklo_epi8(a, b); }
    PERDURE_INLINE static Vector high8(Vector a, Vector b) { return _mm512_unpackhi_epi8(a, b); }
    PERDURE_INLINE static Vector low16(Vector a, Vector b) { return _mm512_unpacklo_epi16(a, b); }
    PERDURE_INLINE static Vector high16(Vector a, Vector b) { return _mm512_unpackhi_epi16(a, b); }
    PERDURE_INLINE static Vector low32(Vector a, Vector b) { return _mm512_unpacklo_epi32(a, b); }
    PERDURE_INLINE static Vector high32(Vector a, Vector b) { return _mm512_unpackhi_epi32(a, b); }
    PERDURE_INLINE static Vector low64(Vector a, Vector b) { return _mm512_unpacklo_epi64(a, b); }
    PERDURE_INLINE static Vector high64(Vector a, Vector b) { return _mm512_unpackhi_epi64(a, b); }
    PERDURE_INLINE static Vector spread4(Vector v) {
        return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), v);
    }
    PERDURE_INLINE static Vector together4(Vector v) { return spread4(v); }
    PERDURE_INLINE static Vector spread2(Vector v) {
        return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), v);
    }
    PERDURE_INLINE static Vector together2(Vector v) {
        return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), v);
    }
};

PERDURE_TARGET void split(unsigned width, bool floats, Change change, const u8* x, const u8* base, std::size_t n,
                          u8* const* to) {
    split_most<Avx512>(width, floats, change, x, base, n, to);
}

PERDURE_TARGET void join(unsigned width, bool floats, Change change, const u8* const* planes, const u8* base, std::size_t n,
                         u8* out) {
    join_most<Avx512>(width, floats, change, planes, base, n, out);
}

}  // namespace

const Splitter kAvx512Splitter{split, join};

}  // namespace perdure::planes
