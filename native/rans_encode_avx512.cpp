// Classes to streams, with AVX-512.
#include "rans_avx512.h"

namespace perdure::rans {

namespace avx512 {

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

}  // namespace avx512

}  // namespace perdure::rans
