// The coder with AVX2: the 64 lanes of a group in two registers.
//
// The same steps as in rans_avx512.cpp. What AVX2 lacks is made of other things: a table of more than 16 bytes is looked up 16
// at a time (the shuffle gives 0 for an index of 128 and more), bytes are compressed and expanded 8 at a time by a shuffle
// from a table, 16-bit shifts by a count for each lane are multiplications, and which class a slot belongs to is read lane by
// lane. Enabled function by function, for the reason given in xxh3_avx2.cpp.
#include <immintrin.h>

#include <cstring>

#include "rans.h"

#define PERDURE_TARGET __attribute__((target("avx2,popcnt")))
#define PERDURE_INLINE PERDURE_TARGET __attribute__((always_inline)) inline

namespace perdure::rans {

namespace {

using Vector = __m256i;

constexpr int kHalves = 2;

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
constexpr Shuffles kShuffles;

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

// ---- Classes -------------------------------------------------------------------------------------------------------

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

struct Counter {
    u32 of[4][kCells] = {};
    void add(const u8* cells) {
        for (std::size_t i = 0; i < kLanes; i += 4) {
            for (std::size_t j = 0; j < 4; ++j) ++of[j][cells[i + j]];
        }
    }
    void finish(u32* counts) const {
        for (std::size_t cell = 0; cell < kCells; ++cell) {
            counts[cell] = of[0][cell] + of[1][cell] + of[2][cell] + of[3][cell];
        }
    }
};

template <class E, unsigned kWidth, unsigned kShift>
PERDURE_TARGET std::size_t classify(const u8* x, const u8* base, std::size_t n, const View& view, u8* index, u8* raw,
                                    u8* literals, u32* counts) {
    alignas(16) static constexpr u8 kSmall[16] = {0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7};
    alignas(16) static constexpr u8 kLarge[16] = {0, 8, 10, 11, 12, 12, 13, 13, 14, 14, 14, 14, 14, 14, 14, 14};
    const Contexts contexts(view);
    const Vector zero = _mm256_setzero_si256();
    Counter counter;
    u8* literal = literals;
    for (std::size_t group = 0; group < (n + kRound - 1) / kRound * 2; ++group) {
        const u8 *now = x + group * kLanes * kWidth, *before = base + group * kLanes * kWidth;
        u8 rest_now[kLanes * kWidth], rest_before[kLanes * kWidth];
        if (n < (group + 1) * kLanes) {
            std::memset(rest_now, 0, sizeof rest_now);
            std::memset(rest_before, 0, sizeof rest_before);
            if (n > group * kLanes) {
                std::memcpy(rest_now, now, (n - group * kLanes) * kWidth);
                std::memcpy(rest_before, before, (n - group * kLanes) * kWidth);
            }
            now = rest_now;
            before = rest_before;
        }
        u64 escapes = 0;
        for (int half = 0; half < kHalves; ++half) {
            const std::size_t at0 = 16 * kWidth * half, at1 = at0 + 32 * kWidth;
            const Vector base0 = E::words(before + at0), base1 = E::words(before + at1);
            const Vector d0 = _mm256_sub_epi16(E::ordered(E::words(now + at0)), E::ordered(base0));
            const Vector d1 = _mm256_sub_epi16(E::ordered(E::words(now + at1)), E::ordered(base1));
            const Vector abs0 = _mm256_abs_epi16(d0), abs1 = _mm256_abs_epi16(d1);
            const Vector magnitude = low_bytes(abs0, abs1);
            const Vector within = _mm256_cmpeq_epi8(high_bytes(abs0, abs1), zero);
            const Vector nibble = _mm256_and_si256(_mm256_srli_epi16(magnitude, 4), all(15));
            const Vector small = _mm256_and_si256(_mm256_cmpeq_epi8(nibble, zero),
                                                  _mm256_shuffle_epi8(table16(kSmall), _mm256_and_si256(magnitude, all(15))));
            const Vector half_step = _mm256_cmpeq_epi8(_mm256_and_si256(magnitude, all(0xf8)), all(0x18));  // 24 to 31
            Vector kind = _mm256_or_si256(small, _mm256_shuffle_epi8(table16(kLarge), nibble));
            kind = _mm256_sub_epi8(kind, half_step);
            kind = _mm256_blendv_epi8(all(kEscape), kind, within);
            const Vector sign = low_bytes(_mm256_srli_epi16(d0, 15), _mm256_srli_epi16(d1, 15));
            const Vector rest = _mm256_sub_epi8(magnitude, _mm256_shuffle_epi8(table16(kFirst), kind));
            store(raw + group * kLanes + 32 * half,
                  _mm256_and_si256(within, _mm256_or_si256(_mm256_add_epi8(rest, rest), sign)));
            store(index + group * kLanes + 32 * half, _mm256_or_si256(kind, contexts.of<kShift>(base0, base1)));
            escapes |= u64{~static_cast<unsigned>(_mm256_movemask_epi8(within))} << 32 * half;
        }
        counter.add(index + group * kLanes);
        each_element(escapes, [&](std::size_t i) {
            std::memcpy(literal, now + i * kWidth, kWidth);
            literal += kWidth;
        });
    }
    counter.finish(counts);
    return static_cast<std::size_t>(literal - literals) / kWidth;
}

std::size_t ulp_classify(const u8* x, const u8* base, std::size_t n, const View& view, unsigned, u8* index, u8* raw,
                         u8* literals, u32* counts) {
    if (view.width == 1) return classify<Elements<1, 1>, 1, 1>(x, base, n, view, index, raw, literals, counts);
    if (view.shift == 9) return classify<Elements<2, 9>, 2, 9>(x, base, n, view, index, raw, literals, counts);
    return classify<Elements<2, 7>, 2, 7>(x, base, n, view, index, raw, literals, counts);
}

std::size_t byte_classify(const u8* bytes, std::size_t n, const Ranges& ranges, u8* index, u8* raw, u8* literals,
                          u32* counts) {
    Counter counter;
    std::size_t n_literals = 0;
    for (std::size_t group = 0; group < (n + kRound - 1) / kRound * kRound; group += kLanes) {
        for (std::size_t i = group; i < group + kLanes; ++i) {
            const u8 value = i < n ? bytes[i] : ranges.first[0], kind = ranges.of[value];
            index[i] = kind;
            literals[n_literals] = value;
            n_literals += kind == kEscape;
            raw[i] = static_cast<u8>(kind == kEscape ? 0 : value - ranges.first[kind]);
        }
        counter.add(index + group);
    }
    counter.finish(counts);
    return n_literals;
}

// ---- Encoding ------------------------------------------------------------------------------------------------------

// Give away the low byte of the states in `full` (0 or 255 a lane); the high byte takes its place.
PERDURE_INLINE void give(States& states, const Vector (&full)[kHalves], u8*& at) {
    for (int half = 0; half < kHalves; ++half) {
        u8 low[32];
        store(low, states.low[half]);
        const auto lanes = static_cast<unsigned>(_mm256_movemask_epi8(full[half]));
        for (int i = 0; i < 4; ++i) {
            const unsigned bits = lanes >> 8 * i & 0xff;
            const __m128i from = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(low + 8 * i));
            const __m128i where = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kShuffles.compress[bits]));
            _mm_storel_epi64(reinterpret_cast<__m128i*>(at), _mm_shuffle_epi8(from, where));
            at += _mm_popcnt_u32(bits);
        }
        states.low[half] = _mm256_blendv_epi8(states.low[half], states.high[half], full[half]);
        states.high[half] = _mm256_andnot_si256(full[half], states.high[half]);
    }
}

// (x / freq << 8) + x % freq. The quotient by the inverse is right or one too small.
PERDURE_INLINE Vector divided(Vector x, Vector freq, Vector inverse) {
    const Vector gap = _mm256_sub_epi16(_mm256_set1_epi16(256), freq);
    const Vector quotient = _mm256_mulhi_epu16(x, inverse);
    const Vector sum = _mm256_add_epi16(x, _mm256_mullo_epi16(quotient, gap));
    const Vector remainder = _mm256_sub_epi16(sum, _mm256_slli_epi16(quotient, 8));
    return _mm256_add_epi16(sum, _mm256_andnot_si256(_mm256_cmpgt_epi16(freq, remainder), gap));
}

template <int kContexts, bool kBits>
PERDURE_TARGET void encode_all(const u8* index, const u8* raw, std::size_t n_padded, const Model& model, Ahead ahead, u8* symbols,
                               u8* raws, u8* states, std::size_t& n_symbols, std::size_t& n_raws) {
    alignas(32) u8 low[kCells], high[kCells], limits[kClasses], factors[kClasses];
    for (std::size_t cell = 0; cell < kCells; ++cell) {
        const unsigned freq = model.freq[cell], inverse = freq < 2 ? 0xffff : 0x10000 / freq;
        low[cell] = static_cast<u8>(inverse);
        high[cell] = static_cast<u8>(inverse >> 8);
    }
    for (std::size_t kind = 0; kind < kClasses; ++kind) {
        limits[kind] = static_cast<u8>(0xff >> model.bits[kind]);
        factors[kind] = static_cast<u8>((1u << model.bits[kind]) - 1);  // times this and once more is the shift
    }
    const Vector limit = table16(limits), factor = table16(factors);
    States sets[2];
    for (States& set : sets) {
        for (int half = 0; half < kHalves; ++half) {
            set.low[half] = _mm256_setzero_si256();
            set.high[half] = all(1);
        }
    }
    u8 *symbol = symbols, *rest = raws;
    for (std::size_t group = n_padded / kLanes; group-- > 0;) {
        if ((group & 1) == 0) ahead.ask();
        States& set = sets[group & 1];
        Vector cells[kHalves], full[kHalves], freq[kHalves];
        for (int half = 0; half < kHalves; ++half) {
            cells[half] = load(index + group * kLanes + 32 * half);
            const Vector most = _mm256_shuffle_epi8(limit, cells[half]);
            full[half] = _mm256_xor_si256(at_least(most, set.high[half]), all(0xff));
        }
        if constexpr (kBits) give(set, full, rest);
        for (int half = 0; half < kHalves; ++half) {
            if constexpr (kBits) {
                const Vector value = load(raw + group * kLanes + 32 * half);
                const Vector times = _mm256_shuffle_epi8(factor, cells[half]);
                Vector x0 = even_words(set.low[half], set.high[half]), x1 = odd_words(set.low[half], set.high[half]);
                x0 = _mm256_add_epi16(x0, _mm256_add_epi16(_mm256_mullo_epi16(x0, even(times)), even(value)));
                x1 = _mm256_add_epi16(x1, _mm256_add_epi16(_mm256_mullo_epi16(x1, odd(times)), odd(value)));
                set.low[half] = low_bytes(x0, x1);
                set.high[half] = high_bytes(x0, x1);
            }
            freq[half] = Picks<kContexts>(cells[half]).in(model.freq);
            full[half] = at_least(set.high[half], freq[half]);
        }
        give(set, full, symbol);
        for (int half = 0; half < kHalves; ++half) {
            const Picks<kContexts> picks(cells[half]);
            const Vector begin = picks.in(model.start), below = picks.in(low), above = picks.in(high);
            Vector x0 = even_words(set.low[half], set.high[half]), x1 = odd_words(set.low[half], set.high[half]);
            x0 = _mm256_add_epi16(divided(x0, even(freq[half]), even_words(below, above)), even(begin));
            x1 = _mm256_add_epi16(divided(x1, odd(freq[half]), odd_words(below, above)), odd(begin));
            set.low[half] = low_bytes(x0, x1);
            set.high[half] = high_bytes(x0, x1);
        }
    }
    for (std::size_t set = 0; set < 2; ++set) {
        for (int half = 0; half < kHalves; ++half) {
            store(states + kRound * set + 32 * half, sets[set].low[half]);
            store(states + kRound * set + kLanes + 32 * half, sets[set].high[half]);
        }
    }
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

template <int kContexts>
struct Decoder {
    const Model& model;
    u8 class_of[kContexts * 256];  // by 256 * context + slot
    Vector mask, factor;
    States sets[2];
    Backward symbols, raws;

    PERDURE_TARGET Decoder(const Model& from, const Streams& in)
        : model(from), symbols(in.symbols, in.n_symbols), raws(in.raws, in.n_raws) {
        std::memset(class_of, 0, sizeof class_of);
        for (std::size_t cell = 0; cell < kContexts * kClasses; ++cell) {
            std::memset(class_of + 256 * (cell / kClasses) + model.start[cell], static_cast<int>(cell % kClasses),
                        model.freq[cell]);
        }
        u8 masks[kClasses], factors[kClasses];
        for (std::size_t kind = 0; kind < kClasses; ++kind) {
            masks[kind] = static_cast<u8>((1u << model.bits[kind]) - 1);
            factors[kind] = static_cast<u8>(0x100 >> model.bits[kind]);  // times this / 256; 0 stands for 1
        }
        mask = table16(masks);
        factor = table16(factors);
        for (std::size_t set = 0; set < 2; ++set) {
            for (int half = 0; half < kHalves; ++half) {
                sets[set].low[half] = load(in.states + kRound * set + 32 * half);
                sets[set].high[half] = load(in.states + kRound * set + kLanes + 32 * half);
            }
        }
    }

    bool ready() { return symbols.ready() && raws.ready(); }

    PERDURE_TARGET bool done() const {
        Vector wrong = _mm256_setzero_si256();
        for (const States& set : sets) {
            for (int half = 0; half < kHalves; ++half) {
                wrong = _mm256_or_si256(wrong, _mm256_or_si256(set.low[half], _mm256_xor_si256(set.high[half], all(1))));
            }
        }
        return _mm256_testz_si256(wrong, wrong) && symbols.done() && raws.done();
    }

    PERDURE_INLINE static Vector shifted(Vector x, Vector times) {
        return _mm256_or_si256(_mm256_mulhi_epu16(x, times),
                               _mm256_and_si256(x, _mm256_cmpeq_epi16(times, _mm256_setzero_si256())));
    }

    // `contexts` are 16 times the context; gives classes and raw bits.
    template <bool kBits = true>
    PERDURE_INLINE void group(States& set, const Vector (&contexts)[kHalves], Vector (&kinds)[kHalves],
                              Vector (&values)[kHalves]) {
        alignas(32) u16 slots[kLanes];  // 256 * context + slot
        for (int half = 0; half < kHalves; ++half) {
            const Vector context = _mm256_srli_epi16(contexts[half], 4);
            const Vector first = _mm256_unpacklo_epi8(set.low[half], context);  // of each 128 bits the lower half
            const Vector second = _mm256_unpackhi_epi8(set.low[half], context);
            store(slots + 32 * half, _mm256_permute2x128_si256(first, second, 0x20));
            store(slots + 32 * half + 16, _mm256_permute2x128_si256(first, second, 0x31));
        }
#pragma GCC unroll 2
        for (int half = 0; half < kHalves; ++half) {
            long long found[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                u64 eight = 0;
#pragma GCC unroll 8
                for (int j = 0; j < 8; ++j) eight |= u64{class_of[slots[32 * half + 8 * i + j]]} << 8 * j;
                found[i] = static_cast<long long>(eight);
            }
            kinds[half] = _mm256_set_epi64x(found[3], found[2], found[1], found[0]);
            const Picks<kContexts> picks(_mm256_or_si256(kinds[half], contexts[half]));
            const Vector freq = picks.in(model.freq), rest = _mm256_sub_epi8(set.low[half], picks.in(model.start));
            const Vector x0 = _mm256_add_epi16(_mm256_mullo_epi16(even(freq), even(set.high[half])), even(rest));
            const Vector x1 = _mm256_add_epi16(_mm256_mullo_epi16(odd(freq), odd(set.high[half])), odd(rest));
            set.low[half] = low_bytes(x0, x1);
            set.high[half] = high_bytes(x0, x1);
        }
        take(set, symbols.at);
        if constexpr (!kBits) return;
        for (int half = 0; half < kHalves; ++half) {
            values[half] = _mm256_and_si256(set.low[half], _mm256_shuffle_epi8(mask, kinds[half]));
            const Vector times = _mm256_shuffle_epi8(factor, kinds[half]);
            const Vector x0 = shifted(even_words(set.low[half], set.high[half]), _mm256_slli_epi16(times, 8));
            const Vector x1 = shifted(odd_words(set.low[half], set.high[half]), upper(times));
            set.low[half] = low_bytes(x0, x1);
            set.high[half] = high_bytes(x0, x1);
        }
        take(set, raws.at);
    }
};

template <class E, unsigned kWidth, unsigned kShift, int kContexts>
PERDURE_TARGET bool decode(const Model& model, const Streams& in, const u8* base, std::size_t n, const View& view, u8* out) {
    Decoder<kContexts> decoder(model, in);
    const Contexts contexts(view);
    const u8 *literal = in.literals, *literals_end = in.literals + kWidth * in.n_literals;
    u8 rest_base[kLanes * kWidth], rest_out[kLanes * kWidth];
    for (std::size_t group = 0; group < (n + kRound - 1) / kRound * 2; ++group) {
        if (group % 2 == 0 && !decoder.ready()) return false;
        const std::size_t at = group * kLanes;
        const u8* from = base + at * kWidth;
        u8* to = out + at * kWidth;
        const bool partial = n < at + kLanes;
        if (partial) {
            std::memset(rest_base, 0, sizeof rest_base);
            if (n > at) std::memcpy(rest_base, from, (n - at) * kWidth);
            from = rest_base;
            to = rest_out;
        }
        Vector above[kHalves], kinds[kHalves], values[kHalves];
        for (int half = 0; half < kHalves; ++half) {
            above[half] = contexts.of<kShift>(E::words(from + 16 * kWidth * half), E::words(from + (32 + 16 * half) * kWidth));
        }
        decoder.group(decoder.sets[group & 1], above, kinds, values);
        u64 escapes = 0;
        for (int half = 0; half < kHalves; ++half) {
            const Vector rest = _mm256_and_si256(_mm256_srli_epi16(values[half], 1), all(0x7f));
            const Vector magnitude = _mm256_add_epi8(_mm256_shuffle_epi8(table16(kFirst), kinds[half]), rest);
            const std::size_t at0 = 16 * kWidth * half, at1 = at0 + 32 * kWidth;
            const Vector minus0 = _mm256_srai_epi16(_mm256_slli_epi16(values[half], 15), 15);
            const Vector minus1 = _mm256_srai_epi16(_mm256_slli_epi16(values[half], 7), 15);
            const Vector d0 = _mm256_sub_epi16(_mm256_xor_si256(even(magnitude), minus0), minus0);
            const Vector d1 = _mm256_sub_epi16(_mm256_xor_si256(odd(magnitude), minus1), minus1);
            const Vector before0 = E::ordered(E::words(from + at0)), before1 = E::ordered(E::words(from + at1));
            E::put(to + at0, E::ordered(_mm256_add_epi16(before0, d0)));
            E::put(to + at1, E::ordered(_mm256_add_epi16(before1, d1)));
            const Vector escaped = _mm256_cmpeq_epi8(kinds[half], all(kEscape));
            escapes |= u64{static_cast<unsigned>(_mm256_movemask_epi8(escaped))} << 32 * half;
        }
        if (literals_end - literal < static_cast<std::ptrdiff_t>(kWidth) * _mm_popcnt_u64(escapes)) return false;
        each_element(escapes, [&](std::size_t i) {
            std::memcpy(to + i * kWidth, literal, kWidth);
            literal += kWidth;
        });
        if (partial && n > at) std::memcpy(out + at * kWidth, rest_out, (n - at) * kWidth);
    }
    return decoder.done() && literal == literals_end;
}

template <class E, unsigned kWidth, unsigned kShift>
bool decode_any(const Model& model, const Streams& in, const u8* base, std::size_t n, const View& view, u8* out) {
    if (model.contexts == 1) return decode<E, kWidth, kShift, 1>(model, in, base, n, view, out);
    if (model.contexts <= 4) return decode<E, kWidth, kShift, 4>(model, in, base, n, view, out);
    return decode<E, kWidth, kShift, 8>(model, in, base, n, view, out);
}

bool ulp_decode(const Model& model, const Streams& in, const u8* base, std::size_t n, const View& view, u8* out) {
    if (view.width == 1) return decode_any<Elements<1, 1>, 1, 1>(model, in, base, n, view, out);
    if (view.shift == 9) return decode_any<Elements<2, 9>, 2, 9>(model, in, base, n, view, out);
    return decode_any<Elements<2, 7>, 2, 7>(model, in, base, n, view, out);
}

template <bool kBits>
PERDURE_TARGET bool byte_decode_all(const Model& model, const Ranges& ranges, const Streams& in, std::size_t n, Ahead ahead,
                                    u8* out) {
    Decoder<1> decoder(model, in);
    const u8 *literal = in.literals, *literals_end = in.literals + in.n_literals;
    const Vector first = table16(ranges.first);
    const Vector none[kHalves] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (std::size_t group = 0; group < (n + kRound - 1) / kRound * 2; ++group) {
        if (group % 2 == 0 && !decoder.ready()) return false;
        if ((group & 1) == 0) {
            ahead.ask();
            ahead.ask_to_write();
        }
        const std::size_t at = group * kLanes;
        Vector kinds[kHalves], values[kHalves] = {none[0], none[0]};
        decoder.template group<kBits>(decoder.sets[group & 1], none, kinds, values);
        u8 bytes[kLanes], found[kLanes];
        int escapes = 0;
        for (int half = 0; half < kHalves; ++half) {
            store(bytes + 32 * half, _mm256_add_epi8(_mm256_shuffle_epi8(first, kinds[half]), values[half]));
            store(found + 32 * half, kinds[half]);
            escapes |= _mm256_movemask_epi8(_mm256_cmpeq_epi8(kinds[half], all(kEscape)));
        }
        if (escapes != 0) {
            for (std::size_t lane = 0; lane < kLanes; ++lane) {
                if (found[lane] != kEscape) continue;
                if (literal == literals_end) return false;
                bytes[lane] = *literal++;
            }
        }
        if (n > at) std::memcpy(out + at, bytes, n - at < kLanes ? n - at : kLanes);
    }
    return decoder.done() && literal == literals_end;
}

bool byte_decode(const Model& model, const Ranges& ranges, const Streams& in, std::size_t n, Ahead ahead, u8* out) {
    return model.has_bits() ? byte_decode_all<true>(model, ranges, in, n, ahead, out)
                            : byte_decode_all<false>(model, ranges, in, n, ahead, out);
}

}  // namespace

const Kernels kAvx2{ulp_classify, encode, ulp_decode, byte_classify, byte_decode};

}  // namespace perdure::rans
