// Streams to bytes, with AVX2.
#include "rans_avx2.h"
#include "rans_bytes.h"

namespace perdure::rans {

namespace avx2 {

// One reader, its classes numbered anew without those that have no slots: the class of a slot is then how many begin at or below
// it, which is compared for all lanes at once.
struct Bytes {
    u8 freq[kClasses] = {}, start[kClasses] = {}, first[kClasses] = {}, mask[kClasses] = {}, factor[kClasses] = {};
    u8 escape = 0xff;  // no class
    int n = 0;
    Vector below[kClasses];  // the slot before a class, as what signed comparisons take

    PERDURE_INLINE explicit Bytes(const ByteReader& reader) {
        for (std::size_t kind = 0; kind < kClasses; ++kind) {
            if (reader.freq[kind] == 0) continue;
            freq[n] = reader.freq[kind];
            start[n] = reader.start[kind];
            first[n] = reader.first[kind];
            mask[n] = static_cast<u8>((1u << reader.bits[kind]) - 1);
            factor[n] = static_cast<u8>(0x100 >> reader.bits[kind]);  // times this / 256; 0 stands for 1
            below[n] = all(static_cast<u8>(start[n] - 1) ^ 0x80);
            if (kind == kEscape) escape = static_cast<u8>(n);
            ++n;
        }
    }

    PERDURE_INLINE static States states(const u8* at) {
        return {{load(at), load(at + 32)}, {load(at + kLanes), load(at + kLanes + 32)}};
    }
    PERDURE_INLINE static void leave(const States& set, u8* at) {
        for (int half = 0; half < kHalves; ++half) {
            store(at + 32 * half, set.low[half]);
            store(at + kLanes + 32 * half, set.high[half]);
        }
    }

    // Where a reader is, in registers: what is written through a pointer to bytes could be anything that lies in memory.
    struct Place {
        const u8 *symbol, *raw, *literal;
    };

    template <bool kBits>
    PERDURE_INLINE bool group(States& set, Place& place, const u8* literals_end, u8* to) const {
        Vector kinds[kHalves] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, values[kHalves];
        const Vector slots[kHalves] = {_mm256_xor_si256(set.low[0], all(0x80)), _mm256_xor_si256(set.low[1], all(0x80))};
        for (int i = 1; i < n; ++i) {
            for (int half = 0; half < kHalves; ++half) {
                kinds[half] = _mm256_sub_epi8(kinds[half], _mm256_cmpgt_epi8(slots[half], below[i]));
            }
        }
        for (int half = 0; half < kHalves; ++half) {
            const Vector f = _mm256_shuffle_epi8(table16(freq), kinds[half]);
            const Vector rest = _mm256_sub_epi8(set.low[half], _mm256_shuffle_epi8(table16(start), kinds[half]));
            const Vector x0 = _mm256_add_epi16(_mm256_mullo_epi16(even(f), even(set.high[half])), even(rest));
            const Vector x1 = _mm256_add_epi16(_mm256_mullo_epi16(odd(f), odd(set.high[half])), odd(rest));
            set.low[half] = low_bytes(x0, x1);
            set.high[half] = high_bytes(x0, x1);
            values[half] = _mm256_shuffle_epi8(table16(first), kinds[half]);
        }
        take(set, place.symbol);
        if constexpr (kBits) {
            for (int half = 0; half < kHalves; ++half) {
                const Vector raw = _mm256_and_si256(set.low[half], _mm256_shuffle_epi8(table16(mask), kinds[half]));
                values[half] = _mm256_add_epi8(values[half], raw);
                const Vector times = _mm256_shuffle_epi8(table16(factor), kinds[half]);
                const Vector x0 = shifted(even_words(set.low[half], set.high[half]), _mm256_slli_epi16(times, 8));
                const Vector x1 = shifted(odd_words(set.low[half], set.high[half]), upper(times));
                set.low[half] = low_bytes(x0, x1);
                set.high[half] = high_bytes(x0, x1);
            }
            take(set, place.raw);
        }
        u64 escapes = 0;
        for (int half = 0; half < kHalves; ++half) {
            store(to + 32 * half, values[half]);
            const auto here = static_cast<unsigned>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(kinds[half], all(escape))));
            escapes |= u64{here} << 32 * half;
        }
        if (literals_end - place.literal < static_cast<std::ptrdiff_t>(_mm_popcnt_u64(escapes))) return false;
        for (; escapes != 0; escapes &= escapes - 1) to[__builtin_ctzll(escapes)] = *place.literal++;
        return true;
    }
};

template <bool kBits>
PERDURE_TARGET bool bytes_of(ByteReader& reader, std::size_t n, Ahead& ahead, u8* out) {
    const Bytes bytes(reader);
    const u8* literals_end = reader.literals_end;
    Bytes::Place place{reader.symbols.at, reader.raws.at, reader.literal};
    States set0 = Bytes::states(reader.states), set1 = Bytes::states(reader.states + kRound);
    u8 rest[kRound];
    for (std::size_t at = 0; at < n; at += kRound) {
        if (!reader.ready<kBits>(place.symbol, place.raw)) return false;
        ahead.ask();
        u8* to = n - at < kRound ? rest : out + at;
        if (!bytes.group<kBits>(set0, place, literals_end, to)) return false;
        if (!bytes.group<kBits>(set1, place, literals_end, to + kLanes)) return false;
        if (n - at < kRound) std::memcpy(out + at, rest, n - at);
    }
    reader.symbols.at = place.symbol;
    reader.raws.at = place.raw;
    reader.literal = place.literal;
    Bytes::leave(set0, reader.states);
    Bytes::leave(set1, reader.states + kRound);
    return true;
}

// Sixteen registers hold one reader: two take turns piece by piece.
bool byte_decode(ByteReader* const* readers, unsigned count, std::size_t n, Ahead ahead, u8* const* out) {
    for (unsigned i = 0; i < count; ++i) {
        const bool ok = readers[i]->has_bits ? bytes_of<true>(*readers[i], n, ahead, out[i])
                                             : bytes_of<false>(*readers[i], n, ahead, out[i]);
        if (!ok) return false;
        ahead = {};
    }
    return true;
}

}  // namespace avx2

}  // namespace perdure::rans
