// Streams to elements and bytes, with AVX-512.
#include "rans_avx512.h"
#include "rans_bytes.h"

namespace perdure::rans {

namespace avx512 {

// Take a byte into the states that are below 256.
PERDURE_INLINE void take(States& states, const u8*& at) {
    const __mmask64 low = _mm512_testn_epi8_mask(states.high, states.high);
    at -= _mm_popcnt_u64(low);
    states.high = _mm512_mask_mov_epi8(states.high, low, states.low);
    states.low = _mm512_mask_expand_epi8(states.low, low, load_first(at));
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
        Vector x1 = _mm512_add_epi16(_mm512_mulhi_epu16(tops(f), tops(states.high)), odd(r));
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
        x0 = _mm512_mask_expand_epi16(x0, escape0, load_first(literal));
        literal += 2 * _mm_popcnt_u32(escape0);
        x1 = _mm512_mask_expand_epi16(x1, escape1, load_first(literal));
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

// One reader of bytes in registers.
template <bool kBits>
struct Bytes {
    Decoder<1> decoder;
    Vector first;
    States set0, set1;
    const u8 *symbol, *raw, *literal;

    PERDURE_INLINE explicit Bytes(const ByteReader& reader)
        : first(table16(reader.first)), symbol(reader.symbols.at), raw(reader.raws.at), literal(reader.literal) {
        u8 masks[kClasses];
        for (std::size_t kind = 0; kind < kClasses; ++kind) masks[kind] = static_cast<u8>((1u << reader.bits[kind]) - 1);
        decoder.slots[0] = Bytes256::of(reader.class_of);
        decoder.freq = Cells<1>::of(reader.freq);
        decoder.start = Cells<1>::of(reader.start);
        decoder.bits = table16(reader.bits);
        decoder.mask = table16(masks);
        set0 = {load(reader.states), load(reader.states + 64)};
        set1 = {load(reader.states + 128), load(reader.states + 192)};
    }
    // Before each round. It takes at most kRound literals, and behind them lie more bytes than that: too many show in time.
    PERDURE_INLINE bool ready(ByteReader& reader) {
        return reader.ready<kBits>(symbol, raw) && literal <= reader.literals_end;
    }
    PERDURE_INLINE void group(States& set, u8* to) {
        Vector value = _mm512_setzero_si512();
        const Vector kind = decoder.template group<kBits>(set, value, symbol, raw, value);
        const __mmask64 escape = _mm512_cmpeq_epi8_mask(kind, _mm512_set1_epi8(kEscape));
        const Vector begin = _mm512_shuffle_epi8(first, kind);
        value = kBits ? _mm512_add_epi8(begin, value) : begin;
        store(to, _mm512_mask_expand_epi8(value, escape, load_first(literal)));
        literal += _mm_popcnt_u64(escape);
    }
    PERDURE_INLINE void leave(ByteReader& reader) const {
        reader.symbols.at = symbol;
        reader.raws.at = raw;
        reader.literal = literal;
        store(reader.states, set0.low);
        store(reader.states + 64, set0.high);
        store(reader.states + 128, set1.low);
        store(reader.states + 192, set1.high);
    }
};

template <bool kBits>
PERDURE_TARGET bool decode_one(ByteReader& reader, std::size_t n, Ahead& ahead, u8* out) {
    Bytes<kBits> bytes(reader);
    u8 rest[kRound];
    for (std::size_t at = 0; at < n; at += kRound) {
        if (!bytes.ready(reader)) return false;
        ahead.ask();
        u8* to = n - at < kRound ? rest : out + at;
        bytes.group(bytes.set0, to);
        bytes.group(bytes.set1, to + kLanes);
        if (n - at < kRound) std::memcpy(out + at, rest, n - at);
    }
    bytes.leave(reader);
    return true;
}

template <bool kBits>
PERDURE_TARGET bool decode_two(ByteReader& a, ByteReader& b, std::size_t n, Ahead& ahead, u8* out_a, u8* out_b) {
    Bytes<kBits> bytes_a(a), bytes_b(b);
    u8 rest_a[kRound], rest_b[kRound];
    for (std::size_t at = 0; at < n; at += kRound) {
        if (!bytes_a.ready(a) || !bytes_b.ready(b)) return false;
        ahead.ask();
        u8 *to_a = out_a + at, *to_b = out_b + at;
        if (n - at < kRound) {
            to_a = rest_a;
            to_b = rest_b;
        }
        bytes_a.group(bytes_a.set0, to_a);
        bytes_b.group(bytes_b.set0, to_b);
        bytes_a.group(bytes_a.set1, to_a + kLanes);
        bytes_b.group(bytes_b.set1, to_b + kLanes);
        if (n - at < kRound) {
            std::memcpy(out_a + at, rest_a, n - at);
            std::memcpy(out_b + at, rest_b, n - at);
        }
    }
    bytes_a.leave(a);
    bytes_b.leave(b);
    return true;
}

bool byte_decode(ByteReader* const* readers, unsigned count, std::size_t n, Ahead ahead, u8* const* out) {
    if (count == 1) {
        return readers[0]->has_bits ? decode_one<true>(*readers[0], n, ahead, out[0])
                                    : decode_one<false>(*readers[0], n, ahead, out[0]);
    }
    return readers[0]->has_bits ? decode_two<true>(*readers[0], *readers[1], n, ahead, out[0], out[1])
                                : decode_two<false>(*readers[0], *readers[1], n, ahead, out[0], out[1]);
}

}  // namespace avx512

const Kernels kAvx512{avx512::ulp_classify, avx512::encode, avx512::ulp_decode, avx512::byte_classify, avx512::byte_decode};

}  // namespace perdure::rans
