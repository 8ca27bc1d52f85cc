// Elements and bytes to classes, with AVX-512.
#include "rans_avx512.h"

namespace perdure::rans {

namespace avx512 {

// Counts of 16 classes in each of some contexts: classes to one bit in a byte, the bits of eight bytes transposed, counted.
template <int kContexts>
struct Histogram {
    Vector count[2 * kContexts];        // bytes: each at most 8 more a group
    Vector wide[2 * kContexts][2];      // words
    PERDURE_INLINE void clear() {
        for (int i = 0; i < 2 * kContexts; ++i) count[i] = wide[i][0] = wide[i][1] = _mm512_setzero_si512();
    }
    PERDURE_INLINE void add(Vector classes, Vector contexts) {
        const Vector one = _mm512_set1_epi64(0x8040201008040201ll);
        const Vector lower = _mm512_broadcast_i32x4(_mm_set_epi64x(0, 0x8040201008040201ll));
        const Vector upper = _mm512_broadcast_i32x4(_mm_set_epi64x(0x8040201008040201ll, 0));
#pragma GCC unroll 8
        for (int c = 0; c < kContexts; ++c) {
            const __mmask64 here =
                kContexts == 1 ? ~__mmask64{0} : _mm512_cmpeq_epi8_mask(contexts, _mm512_set1_epi8(static_cast<char>(16 * c)));
            const Vector low = _mm512_maskz_shuffle_epi8(here, lower, classes);
            const Vector high = _mm512_maskz_shuffle_epi8(here, upper, classes);
            count[2 * c] = _mm512_add_epi8(count[2 * c], _mm512_popcnt_epi8(_mm512_gf2p8affine_epi64_epi8(one, low, 0)));
            count[2 * c + 1] =
                _mm512_add_epi8(count[2 * c + 1], _mm512_popcnt_epi8(_mm512_gf2p8affine_epi64_epi8(one, high, 0)));
        }
    }
    // At least every 31 groups.
    PERDURE_INLINE void widen() {
        for (int i = 0; i < 2 * kContexts; ++i) {
            wide[i][0] = _mm512_add_epi16(wide[i][0], even(count[i]));
            wide[i][1] = _mm512_add_epi16(wide[i][1], odd(count[i]));
            count[i] = _mm512_setzero_si512();
        }
    }
    PERDURE_INLINE void finish(u32* counts) {
        widen();
        for (int i = 0; i < 2 * kContexts; ++i) {
            alignas(64) u16 words[2][32];
            store(words[0], wide[i][0]);
            store(words[1], wide[i][1]);
            for (int j = 0; j < 64; ++j) counts[8 * i + 2 * (j & 3) + (j >> 5)] += words[j >> 5][j & 31];
        }
    }
};

// Of 64 elements: cells, raw bits and literals.
template <class E>
struct Classifier {
    Vector first, table, class_low, class_high;

    PERDURE_INLINE static Classifier of(const View& view) {
        alignas(64) u8 classes[128];
        for (unsigned m = 0; m < 128; ++m) classes[m] = class_of(m);
        return {_mm512_set1_epi8(static_cast<char>(view.first)), load(view.context), load(classes), load(classes + 64)};
    }

    PERDURE_INLINE u8* group(const u8* x, const u8* base, std::size_t half, u8* literals, Vector& context, Vector& kind,
                             Vector& raw) const {
        const Vector x0 = E::words(x), x1 = E::words(x + half), base0 = E::words(base), base1 = E::words(base + half);
        context = E::contexts(base0, base1, first, table);
        const Vector d0 = _mm512_sub_epi16(E::ordered(x0), E::ordered(base0));
        const Vector d1 = _mm512_sub_epi16(E::ordered(x1), E::ordered(base1));
        const Vector abs0 = _mm512_abs_epi16(d0), abs1 = _mm512_abs_epi16(d1);
        const Vector magnitude = low_bytes(abs0, abs1), above = high_bytes(abs0, abs1);
        const __mmask64 escape = _mm512_test_epi8_mask(above, above);
        kind = _mm512_permutex2var_epi8(class_low, magnitude, class_high);
        kind = _mm512_mask_mov_epi8(kind, _mm512_movepi8_mask(magnitude), _mm512_set1_epi8(14));
        kind = _mm512_mask_mov_epi8(kind, escape, _mm512_set1_epi8(kEscape));
        const Vector sign = low_bytes(_mm512_srli_epi16(d0, 15), _mm512_srli_epi16(d1, 15));
        const Vector rest = _mm512_sub_epi8(magnitude, _mm512_shuffle_epi8(table16(kFirst), kind));
        raw = _mm512_maskz_mov_epi8(~escape, _mm512_or_si512(_mm512_add_epi8(rest, rest), sign));
        // No branch: where one element in a hundred escapes, one in two would be guessed wrong.
        const __mmask32 escape0 = _mm512_cmpgt_epu16_mask(abs0, _mm512_set1_epi16(255));
        const __mmask32 escape1 = _mm512_cmpgt_epu16_mask(abs1, _mm512_set1_epi16(255));
        store(literals, _mm512_maskz_compress_epi16(escape0, x0));
        literals += 2 * _mm_popcnt_u32(escape0);
        store(literals, _mm512_maskz_compress_epi16(escape1, x1));
        return literals + 2 * _mm_popcnt_u32(escape1);
    }
};

template <class E, unsigned kWidth, int kContexts>
PERDURE_TARGET std::size_t classify(const u8* x, const u8* base, std::size_t n, const View& view, u8* index, u8* raw,
                                    u8* literals, u32* counts) {
    constexpr std::size_t kHalf = 32 * kWidth;
    const Classifier<E> classifier = Classifier<E>::of(view);
    Histogram<kContexts> histogram;
    histogram.clear();
    u8* literal = literals;
    Vector context, kind, rest;
    const std::size_t whole = n / kLanes, groups = (n + kRound - 1) / kRound * 2;
    for (std::size_t group = 0; group < whole;) {
        const std::size_t stop = group + 31 < whole ? group + 31 : whole;
        for (; group < stop; ++group) {
            const std::size_t at = group * 2 * kHalf;
            _mm_prefetch(reinterpret_cast<const char*>(x + at + kAhead), _MM_HINT_T0);
            _mm_prefetch(reinterpret_cast<const char*>(base + at + kAhead), _MM_HINT_T0);
            if constexpr (kWidth == 2) {
                _mm_prefetch(reinterpret_cast<const char*>(x + at + kAhead + 64), _MM_HINT_T0);
                _mm_prefetch(reinterpret_cast<const char*>(base + at + kAhead + 64), _MM_HINT_T0);
            }
            literal = classifier.group(x + at, base + at, kHalf, literal, context, kind, rest);
            histogram.add(kind, context);
            store(index + group * kLanes, _mm512_or_si512(kind, context));
            store(raw + group * kLanes, rest);
        }
        histogram.widen();
    }
    for (std::size_t group = whole; group < groups; ++group) {
        u8 rest_x[kLanes * kWidth] = {}, rest_base[kLanes * kWidth] = {};
        if (group * kLanes < n) {
            std::memcpy(rest_x, x + group * kLanes * kWidth, (n - group * kLanes) * kWidth);
            std::memcpy(rest_base, base + group * kLanes * kWidth, (n - group * kLanes) * kWidth);
        }
        literal = classifier.group(rest_x, rest_base, kHalf, literal, context, kind, rest);
        histogram.add(kind, context);
        store(index + group * kLanes, _mm512_or_si512(kind, context));
        store(raw + group * kLanes, rest);
    }
    histogram.finish(counts);
    return static_cast<std::size_t>(literal - literals) / 2;
}

template <class E, unsigned kWidth>
std::size_t classify_any(const u8* x, const u8* base, std::size_t n, const View& view, unsigned contexts, u8* index,
                         u8* raw, u8* literals, u32* counts) {
    if (contexts == 1) return classify<E, kWidth, 1>(x, base, n, view, index, raw, literals, counts);
    if (contexts <= 4) return classify<E, kWidth, 4>(x, base, n, view, index, raw, literals, counts);
    if (contexts <= 6) return classify<E, kWidth, 6>(x, base, n, view, index, raw, literals, counts);
    return classify<E, kWidth, 8>(x, base, n, view, index, raw, literals, counts);
}

std::size_t ulp_classify(const u8* x, const u8* base, std::size_t n, const View& view, unsigned contexts, u8* index,
                         u8* raw, u8* literals, u32* counts) {
    std::memset(counts, 0, kCells * sizeof *counts);
    if (view.width == 1) return classify_any<Elements<1, 1>, 1>(x, base, n, view, contexts, index, raw, literals, counts);
    if (view.shift == 9) return classify_any<Elements<2, 9>, 2>(x, base, n, view, contexts, index, raw, literals, counts);
    return classify_any<Elements<2, 7>, 2>(x, base, n, view, contexts, index, raw, literals, counts);
}

PERDURE_TARGET std::size_t byte_classify(const u8* bytes, std::size_t n, const Ranges& ranges, u8* index, u8* raw,
                                         u8* literals, u32* counts) {
    std::memset(counts, 0, kCells * sizeof *counts);
    const Bytes256 of = Bytes256::of(ranges.of);
    const Vector first = table16(ranges.first);
    u8* literal = literals;
    Histogram<1> histogram;
    histogram.clear();
    const std::size_t whole = n / kLanes, groups = (n + kRound - 1) / kRound * 2;
    for (std::size_t group = 0; group < groups; ++group) {
        u8 rest[kLanes];
        const u8* at = bytes + group * kLanes;
        if (group >= whole) {
            std::memset(rest, ranges.first[0], sizeof rest);
            if (group * kLanes < n) std::memcpy(rest, at, n - group * kLanes);
            at = rest;
        }
        const Vector value = load(at), kind = of.at(value, _mm512_movepi8_mask(value));
        histogram.add(kind, kind);
        store(index + group * kLanes, kind);
        const __mmask64 escape = _mm512_cmpeq_epi8_mask(kind, _mm512_set1_epi8(kEscape));
        store(raw + group * kLanes, _mm512_maskz_sub_epi8(~escape, value, _mm512_shuffle_epi8(first, kind)));
        store(literal, _mm512_maskz_compress_epi8(escape, value));
        literal += _mm_popcnt_u64(escape);
        if (group % 31 == 30) histogram.widen();
    }
    histogram.finish(counts);
    return static_cast<std::size_t>(literal - literals);
}

}  // namespace avx512

}  // namespace perdure::rans
