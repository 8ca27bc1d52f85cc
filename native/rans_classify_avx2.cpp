// Elements and bytes to classes, with AVX2.
#include "rans_avx2.h"

namespace perdure::rans {

namespace avx2 {

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

// Bytes to the ranges that hold them: how many ranges begin at or below a byte is counted by comparing it with all of them, and
// these comparisons, summed, are the counts of the classes too, but for bytes that lie behind the end of their range.
struct ByteClassifier {
    static constexpr int kVectors = kRound / sizeof(Vector);
    int n = 0;
    // By how many ranges begin at or below a byte: the first value and the last one, less the first.
    alignas(16) u8 first[kClasses] = {}, last[kClasses] = {};
    Vector begin[kClasses];  // the first value of a range, as what signed comparisons take
    Vector below[kClasses];  // bytes: lanes that were below that
    u64 total_below[kClasses] = {}, missed[kClasses] = {};

    PERDURE_INLINE explicit ByteClassifier(const Ranges& ranges) {
        u8 size[kClasses] = {};
        for (const u8 kind : ranges.of) {
            if (kind == kEscape) continue;
            if (size[kind]++ == 0 && n <= kind) n = kind + 1;
        }
        for (int i = 0; i < n; ++i) {
            first[i + 1] = ranges.first[i];
            last[i + 1] = static_cast<u8>(size[i] - 1);
            begin[i] = all(ranges.first[i] ^ 0x80);
            below[i] = _mm256_setzero_si256();
        }
    }

    // At least every 63 rounds.
    PERDURE_INLINE void widen() {
        for (int i = 0; i < n; ++i) {
            const Vector sums = _mm256_sad_epu8(below[i], _mm256_setzero_si256());
            total_below[i] += static_cast<u64>(_mm256_extract_epi64(sums, 0) + _mm256_extract_epi64(sums, 1) +
                                               _mm256_extract_epi64(sums, 2) + _mm256_extract_epi64(sums, 3));
            below[i] = _mm256_setzero_si256();
        }
    }

    PERDURE_INLINE void round(const u8* bytes, u8* index, u8* raw, u8*& literals) {
        Vector value[kVectors], order[kVectors], count[kVectors];
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) {
            value[i] = load(bytes + 32 * i);
            order[i] = _mm256_xor_si256(value[i], all(0x80));
            count[i] = all(n);
        }
        for (int r = 0; r < n; ++r) {
            Vector here = _mm256_setzero_si256();
#pragma GCC unroll 4
            for (int i = 0; i < kVectors; ++i) {
                const Vector less = _mm256_cmpgt_epi8(begin[r], order[i]);
                count[i] = _mm256_add_epi8(count[i], less);
                here = _mm256_sub_epi8(here, less);
            }
            below[r] = _mm256_add_epi8(below[r], here);
        }
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) {
            const Vector rest = _mm256_sub_epi8(value[i], _mm256_shuffle_epi8(table16(first), count[i]));
            const Vector most = _mm256_shuffle_epi8(table16(last), count[i]);
            const Vector none = _mm256_cmpeq_epi8(count[i], _mm256_setzero_si256());
            const Vector within = _mm256_andnot_si256(none, at_least(most, rest));
            store(raw + 32 * i, _mm256_and_si256(within, rest));
            store(index + 32 * i, _mm256_blendv_epi8(all(kEscape), _mm256_sub_epi8(count[i], all(1)), within));
            const auto escapes = ~static_cast<unsigned>(_mm256_movemask_epi8(within));
            if (escapes == 0) continue;
            alignas(32) u8 counts[32];
            store(counts, count[i]);
            for (unsigned left = escapes; left != 0; left &= left - 1) {
                const int lane = __builtin_ctz(left);
                *literals++ = bytes[32 * i + lane];
                ++missed[counts[lane]];
            }
        }
    }
};

PERDURE_TARGET std::size_t byte_classify(const u8* bytes, std::size_t n, const Ranges& ranges, u8* index, u8* raw, u8* literals,
                                         u32* counts) {
    ByteClassifier classifier(ranges);
    u8* literal = literals;
    std::size_t rounds = 0;
    for (std::size_t at = 0; at < n; at += kRound) {
        u8 rest[kRound];
        const u8* from = bytes + at;
        if (n - at < kRound) {
            std::memset(rest, ranges.first[0], sizeof rest);
            std::memcpy(rest, from, n - at);
            from = rest;
        }
        classifier.round(from, index + at, raw + at, literal);
        if (++rounds % 63 == 0) classifier.widen();
    }
    classifier.widen();
    std::memset(counts, 0, kCells * sizeof *counts);
    for (int i = 0; i < classifier.n; ++i) {
        const u64 next = i + 1 < classifier.n ? classifier.total_below[i + 1] : rounds * kRound;
        counts[i] = static_cast<u32>(next - classifier.total_below[i] - classifier.missed[i + 1]);
    }
    const auto escapes = static_cast<std::size_t>(literal - literals);
    counts[kEscape] = static_cast<u32>(escapes);
    return escapes;
}

}  // namespace avx2

}  // namespace perdure::rans
