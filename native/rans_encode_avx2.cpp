// Classes to streams, with AVX2.
#include "rans_avx2.h"

namespace perdure::rans {

namespace avx2 {

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

}  // namespace avx2

}  // namespace perdure::rans
