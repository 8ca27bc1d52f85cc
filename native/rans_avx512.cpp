// The coder with AVX-512: 64 lanes an instruction.
//
// Needs VBMI and VBMI2 (permutations and compressions of bytes), BITALG and GFNI: all of them are in every processor since
// 2019 that has the first. Enabled function by function, for the reason given in xxh3_avx2.cpp.
//
// Where 16-bit arithmetic is needed, even byte lanes make one vector of words and odd ones another. For `ulp` lane 2i is
// element i of a group and lane 2i + 1 is element 32 + i, so those two vectors are the elements as they lie in memory.
#include <immintrin.h>

#include <cstring>

#include "rans.h"

#define PERDURE_TARGET \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512bitalg,gfni,bmi,bmi2,popcnt")))
#define PERDURE_INLINE PERDURE_TARGET __attribute__((always_inline)) inline

namespace perdure::rans {

namespace {

using Vector = __m512i;

constexpr std::size_t kAhead = 1024;  // how far before its use an input is asked for

PERDURE_INLINE Vector load(const void* at) { return _mm512_loadu_si512(at); }
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

// ---- The elements of `ulp` -----------------------------------------------------------------------------------------

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

// ---- Encoding ------------------------------------------------------------------------------------------------------

// Give away the low byte of the states in `full`; the high byte takes its place.
PERDURE_INLINE void give(States& states, __mmask64 full, u8*& at) {
    store(at, _mm512_maskz_compress_epi8(full, states.low));
    at += _mm_popcnt_u64(full);
    states.low = _mm512_mask_mov_epi8(states.low, full, states.high);
    states.high = _mm512_maskz_mov_epi8(~full, states.high);
}

template <int kContexts, bool kBits>
struct Encoder {
    Cells<kContexts> freq, start, inverse_low, inverse_high;
    Vector limit, bits;

    PERDURE_INLINE static Encoder of(const Model& model) {
        u8 low[kCells], high[kCells], limits[kClasses];
        for (std::size_t cell = 0; cell < kCells; ++cell) {
            const unsigned freq = model.freq[cell], inverse = freq < 2 ? 0xffff : 0x10000 / freq;
            low[cell] = static_cast<u8>(inverse);
            high[cell] = static_cast<u8>(inverse >> 8);
        }
        for (std::size_t kind = 0; kind < kClasses; ++kind) limits[kind] = static_cast<u8>(0xff >> model.bits[kind]);
        return {Cells<kContexts>::of(model.freq), Cells<kContexts>::of(model.start), Cells<kContexts>::of(low),
                Cells<kContexts>::of(high),       table16(limits),                   table16(model.bits)};
    }

    // (x / freq << 8) + x % freq. The quotient by the inverse is right or one too small.
    PERDURE_INLINE static Vector divided(Vector x, Vector freq, Vector inverse) {
        const Vector gap = _mm512_sub_epi16(_mm512_set1_epi16(256), freq);
        const Vector quotient = _mm512_mulhi_epu16(x, inverse);
        const Vector sum = _mm512_add_epi16(x, _mm512_mullo_epi16(quotient, gap));
        const Vector remainder = _mm512_sub_epi16(sum, _mm512_slli_epi16(quotient, 8));
        return _mm512_mask_add_epi16(sum, _mm512_cmpge_epu16_mask(remainder, freq), sum, gap);
    }

    PERDURE_INLINE void group(const u8* index, const u8* raw, States& states, u8*& symbols, u8*& raws) const {
        const Vector cells = load(index);
        Vector x0, x1;
        if constexpr (kBits) {
            const Vector value = load(raw), shift = _mm512_shuffle_epi8(bits, cells);
            give(states, _mm512_cmpgt_epu8_mask(states.high, _mm512_shuffle_epi8(limit, cells)), raws);
            x0 = _mm512_or_si512(_mm512_sllv_epi16(even_words(states.low, states.high), even(shift)), even(value));
            x1 = _mm512_or_si512(_mm512_sllv_epi16(odd_words(states.low, states.high), odd(shift)), odd(value));
            states = {low_bytes(x0, x1), high_bytes(x0, x1)};
        }
        const Vector f = freq.at(cells), c = start.at(cells), low = inverse_low.at(cells), high = inverse_high.at(cells);
        give(states, _mm512_cmpge_epu8_mask(states.high, f), symbols);
        x0 = divided(even_words(states.low, states.high), even(f), even_words(low, high));
        x1 = divided(odd_words(states.low, states.high), odd(f), odd_words(low, high));
        x0 = _mm512_add_epi16(x0, even(c));
        x1 = _mm512_add_epi16(x1, odd(c));
        states = {low_bytes(x0, x1), high_bytes(x0, x1)};
    }
};

template <int kContexts, bool kBits>
PERDURE_TARGET void encode_all(const u8* index, const u8* raw, std::size_t n_padded, const Model& model, Ahead ahead, u8* symbols,
                               u8* raws, u8* states, std::size_t& n_symbols, std::size_t& n_raws) {
    const Encoder<kContexts, kBits> encoder = Encoder<kContexts, kBits>::of(model);
    const States begin{_mm512_setzero_si512(), _mm512_set1_epi8(1)};
    States set0 = begin, set1 = begin;
    u8 *symbol = symbols, *rest = raws;
    for (std::size_t at = n_padded; at > 0;) {
        at -= kRound;
        ahead.ask();
        encoder.group(index + at + kLanes, raw + at + kLanes, set1, symbol, rest);
        encoder.group(index + at, raw + at, set0, symbol, rest);
    }
    store(states, set0.low);
    store(states + 64, set0.high);
    store(states + 128, set1.low);
    store(states + 192, set1.high);
    n_symbols = static_cast<std::size_t>(symbol - symbols);
    n_raws = static_cast<std::size_t>(rest - raws);
}

void encode(const u8* index, const u8* raw, std::size_t n_padded, const Model& model, Ahead ahead, u8* symbols, u8* raws,
            u8* states, std::size_t& n_symbols, std::size_t& n_raws) {
    const auto all = !model.has_bits() && model.contexts == 1 ? encode_all<1, false>
                     : model.contexts == 1                    ? encode_all<1, true>
                     : model.contexts <= 4                    ? encode_all<4, true>
                                                              : encode_all<8, true>;
    all(index, raw, n_padded, model, ahead, symbols, raws, states, n_symbols, n_raws);
}

// ---- Decoding ------------------------------------------------------------------------------------------------------

// Take a byte into the states that are below 256.
PERDURE_INLINE void take(States& states, const u8*& at) {
    const __mmask64 low = _mm512_testn_epi8_mask(states.high, states.high);
    at -= _mm_popcnt_u64(low);
    states.high = _mm512_mask_mov_epi8(states.high, low, states.low);
    states.low = _mm512_mask_expand_epi8(states.low, low, load(at));
}

template <int kContexts>
struct Decoder {
    static constexpr int kTables = kContexts == 8 ? 4 : kContexts == 4 ? 2 : 1;
    Bytes256 slots[kTables];  // two contexts a table: the even one in the low nibble
    Cells<kContexts> freq, start;
    Vector bits, mask;

    PERDURE_INLINE static void prepare(const Model& model, Decoder& made) {
        for (int table = 0; table < kTables; ++table) {
            alignas(64) u8 both[256] = {};
            for (int half = 0; half < (kContexts == 1 ? 1 : 2); ++half) {
                const std::size_t context = static_cast<std::size_t>(2 * table + half) * kClasses;
                for (unsigned kind = 0; kind < kClasses; ++kind) {
                    for (unsigned i = 0; i < model.freq[context + kind]; ++i) {
                        both[model.start[context + kind] + i] |= static_cast<u8>(kind << 4 * half);
                    }
                }
            }
            made.slots[table] = Bytes256::of(both);
        }
        u8 masks[kClasses];
        for (std::size_t kind = 0; kind < kClasses; ++kind) masks[kind] = static_cast<u8>((1u << model.bits[kind]) - 1);
        made.freq = Cells<kContexts>::of(model.freq);
        made.start = Cells<kContexts>::of(model.start);
        made.bits = table16(model.bits);
        made.mask = table16(masks);
    }

    // The classes in a group of 64 lanes and their raw bits; `context` is 16 times the context.
    template <bool kBits = true>
    PERDURE_INLINE Vector group(States& states, Vector context, const u8*& symbols, const u8*& raws, Vector& raw) const {
        const __mmask64 upper = _mm512_movepi8_mask(states.low);
        Vector kind = slots[0].at(states.low, upper), cells = kind;
        if constexpr (kContexts > 1) {
            kind = _mm512_mask_blend_epi8(_mm512_test_epi8_mask(context, _mm512_set1_epi8(32)), kind,
                                          slots[1].at(states.low, upper));
            if constexpr (kContexts == 8) {
                const Vector other = _mm512_mask_blend_epi8(_mm512_test_epi8_mask(context, _mm512_set1_epi8(32)),
                                                            slots[2].at(states.low, upper), slots[3].at(states.low, upper));
                kind = _mm512_mask_blend_epi8(_mm512_test_epi8_mask(context, _mm512_set1_epi8(64)), kind, other);
            }
            kind = _mm512_mask_blend_epi8(_mm512_test_epi8_mask(context, _mm512_set1_epi8(16)), kind,
                                          _mm512_srli_epi16(kind, 4));
            kind = _mm512_and_si512(kind, _mm512_set1_epi8(15));
            cells = _mm512_or_si512(kind, context);
        }
        const Vector f = freq.at(cells), r = _mm512_sub_epi8(states.low, start.at(cells));
        Vector x0 = _mm512_add_epi16(_mm512_mullo_epi16(even(f), even(states.high)), even(r));
        Vector x1 = _mm512_add_epi16(_mm512_mullo_epi16(odd(f), odd(states.high)), odd(r));
        states = {low_bytes(x0, x1), high_bytes(x0, x1)};
        take(states, symbols);
        if constexpr (!kBits) return kind;
        raw = _mm512_and_si512(states.low, _mm512_shuffle_epi8(mask, kind));
        const Vector shift = _mm512_shuffle_epi8(bits, kind);
        x0 = _mm512_srlv_epi16(even_words(states.low, states.high), even(shift));
        x1 = _mm512_srlv_epi16(odd_words(states.low, states.high), odd(shift));
        states = {low_bytes(x0, x1), high_bytes(x0, x1)};
        take(states, raws);
        return kind;
    }
};

PERDURE_INLINE bool all_begin(const States& set) {
    return (_mm512_test_epi8_mask(set.low, set.low) | _mm512_cmpneq_epi8_mask(set.high, _mm512_set1_epi8(1))) == 0;
}

// Distances to elements. A round takes at most kStateBytes of literals, and as much lies behind them: it is enough to look before
// each round whether more were taken than there are.
template <class E, unsigned kWidth>
struct Rebuilder {
    Vector first, table, begin;
    const u8 *literal, *literals_end;

    PERDURE_INLINE void group(Vector kind, Vector raw, Vector base0, Vector base1, u8* out) {
        const Vector half = _mm512_and_si512(_mm512_srli_epi16(raw, 1), _mm512_set1_epi8(0x7f));
        const Vector magnitude = _mm512_add_epi8(_mm512_shuffle_epi8(begin, kind), half);
        const Vector before0 = E::ordered(base0), before1 = E::ordered(base1), m0 = even(magnitude), m1 = odd(magnitude);
        const __mmask32 minus0 = _mm512_test_epi16_mask(raw, _mm512_set1_epi16(0x001));
        const __mmask32 minus1 = _mm512_test_epi16_mask(raw, _mm512_set1_epi16(0x100));
        Vector x0 = _mm512_mask_sub_epi16(_mm512_add_epi16(before0, m0), minus0, before0, m0);
        Vector x1 = _mm512_mask_sub_epi16(_mm512_add_epi16(before1, m1), minus1, before1, m1);
        x0 = E::ordered(x0);
        x1 = E::ordered(x1);
        const __mmask32 escape0 = _mm512_cmpeq_epi16_mask(even(kind), _mm512_set1_epi16(kEscape));
        const __mmask32 escape1 = _mm512_cmpeq_epi16_mask(odd(kind), _mm512_set1_epi16(kEscape));
        x0 = _mm512_mask_expand_epi16(x0, escape0, load(literal));
        literal += 2 * _mm_popcnt_u32(escape0);
        x1 = _mm512_mask_expand_epi16(x1, escape1, load(literal));
        literal += 2 * _mm_popcnt_u32(escape1);
        E::put(out, x0);
        E::put(out + 32 * kWidth, x1);
    }
};

template <class E, unsigned kWidth, int kContexts>
PERDURE_TARGET bool decode(const Model& model, const Streams& in, const u8* base, std::size_t n, const View& view, u8* out) {
    Decoder<kContexts> decoder;
    Decoder<kContexts>::prepare(model, decoder);
    Rebuilder<E, kWidth> rebuilder{_mm512_set1_epi8(static_cast<char>(view.first)), load(view.context), table16(kFirst),
                                   in.literals, in.literals + 2 * in.n_literals};
    Backward symbols(in.symbols, in.n_symbols), raws(in.raws, in.n_raws);
    States set0{load(in.states), load(in.states + 64)}, set1{load(in.states + 128), load(in.states + 192)};
    u8 rest_base[kRound * kWidth], rest_out[kRound * kWidth];
    for (std::size_t at = 0; at < n; at += kRound) {
        if (!symbols.ready() || !raws.ready() || rebuilder.literal > rebuilder.literals_end) return false;
        const u8* from = base + at * kWidth;
        u8* to = out + at * kWidth;
        if (n - at < kRound) {
            std::memset(rest_base, 0, sizeof rest_base);
            std::memcpy(rest_base, from, (n - at) * kWidth);
            from = rest_base;
            to = rest_out;
        } else {
#pragma GCC unroll 4
            for (std::size_t line = 0; line < kRound * kWidth; line += 64) {
                _mm_prefetch(reinterpret_cast<const char*>(from + line + kAhead), _MM_HINT_T0);
                __builtin_prefetch(to + line + kAhead, 1);
            }
        }
        Vector raw0, raw1;
        const Vector base0 = E::words(from), base1 = E::words(from + 32 * kWidth);
        const Vector base2 = E::words(from + 64 * kWidth), base3 = E::words(from + 96 * kWidth);
        const u8 *symbol = symbols.at, *bits = raws.at;
        const Vector kind0 = decoder.group(set0, E::contexts(base0, base1, rebuilder.first, rebuilder.table), symbol, bits, raw0);
        const Vector kind1 = decoder.group(set1, E::contexts(base2, base3, rebuilder.first, rebuilder.table), symbol, bits, raw1);
        symbols.at = symbol;
        raws.at = bits;
        rebuilder.group(kind0, raw0, base0, base1, to);
        rebuilder.group(kind1, raw1, base2, base3, to + 64 * kWidth);
        if (n - at < kRound) std::memcpy(out + at * kWidth, rest_out, (n - at) * kWidth);
    }
    return symbols.done() && raws.done() && all_begin(set0) && all_begin(set1) && rebuilder.literal == rebuilder.literals_end;
}

template <class E, unsigned kWidth>
bool decode_any(const Model& model, const Streams& in, const u8* base, std::size_t n, const View& view, u8* out) {
    if (model.contexts == 1) return decode<E, kWidth, 1>(model, in, base, n, view, out);
    if (model.contexts <= 4) return decode<E, kWidth, 4>(model, in, base, n, view, out);
    return decode<E, kWidth, 8>(model, in, base, n, view, out);
}

bool ulp_decode(const Model& model, const Streams& in, const u8* base, std::size_t n, const View& view, u8* out) {
    if (view.width == 1) return decode_any<Elements<1, 1>, 1>(model, in, base, n, view, out);
    if (view.shift == 9) return decode_any<Elements<2, 9>, 2>(model, in, base, n, view, out);
    return decode_any<Elements<2, 7>, 2>(model, in, base, n, view, out);
}

template <bool kBits>
PERDURE_TARGET bool byte_decode_all(const Model& model, const Ranges& ranges, const Streams& in, std::size_t n, Ahead ahead,
                                    u8* out) {
    Decoder<1> decoder;
    Decoder<1>::prepare(model, decoder);
    const Vector first = table16(ranges.first), none = _mm512_setzero_si512();
    Backward symbols(in.symbols, in.n_symbols), raws(in.raws, in.n_raws);
    States set0{load(in.states), load(in.states + 64)}, set1{load(in.states + 128), load(in.states + 192)};
    u8 rest[kRound];
    const u8 *literal = in.literals, *literals_end = in.literals + in.n_literals;
    for (std::size_t at = 0; at < n; at += kRound) {
        // A round takes at most kRound literals, and behind them lie more bytes than that: too many show in time.
        if (!symbols.ready() || !raws.ready() || literal > literals_end) return false;
        ahead.ask();
        ahead.ask_to_write();
        u8* to = n - at < kRound ? rest : out + at;
        Vector raw0 = none, raw1 = none;
        const u8 *symbol = symbols.at, *bits = raws.at;
        const Vector kind0 = decoder.group<kBits>(set0, none, symbol, bits, raw0);
        const Vector kind1 = decoder.group<kBits>(set1, none, symbol, bits, raw1);
        symbols.at = symbol;
        raws.at = bits;
        Vector value0 = _mm512_add_epi8(_mm512_shuffle_epi8(first, kind0), raw0);
        Vector value1 = _mm512_add_epi8(_mm512_shuffle_epi8(first, kind1), raw1);
        const __mmask64 escape0 = _mm512_cmpeq_epi8_mask(kind0, _mm512_set1_epi8(kEscape));
        const __mmask64 escape1 = _mm512_cmpeq_epi8_mask(kind1, _mm512_set1_epi8(kEscape));
        value0 = _mm512_mask_expand_epi8(value0, escape0, load(literal));
        literal += _mm_popcnt_u64(escape0);
        value1 = _mm512_mask_expand_epi8(value1, escape1, load(literal));
        literal += _mm_popcnt_u64(escape1);
        store(to, value0);
        store(to + 64, value1);
        if (n - at < kRound) std::memcpy(out + at, rest, n - at);
    }
    return symbols.done() && raws.done() && all_begin(set0) && all_begin(set1) && literal == literals_end;
}

bool byte_decode(const Model& model, const Ranges& ranges, const Streams& in, std::size_t n, Ahead ahead, u8* out) {
    return model.has_bits() ? byte_decode_all<true>(model, ranges, in, n, ahead, out)
                            : byte_decode_all<false>(model, ranges, in, n, ahead, out);
}

}  // namespace

const Kernels kAvx512{ulp_classify, encode, ulp_decode, byte_classify, byte_decode};

}  // namespace perdure::rans
