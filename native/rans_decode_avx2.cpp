// Streams to elements and bytes, with AVX2.
#include "rans_avx2.h"

namespace perdure::rans {

namespace avx2 {

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

    // `contexts` are 16 times the context; gives classes and raw bits.
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

}  // namespace avx2

const Kernels kAvx2{avx2::ulp_classify, avx2::encode, avx2::ulp_decode, avx2::byte_classify, avx2::byte_decode};

}  // namespace perdure::rans
