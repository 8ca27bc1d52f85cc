// The loops of planes_split.h. Who includes this makes one version of them, for the instructions that its functions may use:
// everything here is inlined into those.
#pragma once

#include <cstring>
#include <type_traits>

#include "planes_split.h"

#define PERDURE_LOOP __attribute__((always_inline)) inline

namespace perdure::planes {

namespace {

using u8 = std::uint8_t;

template <class Word>
constexpr unsigned kBits = 8 * sizeof(Word);

template <class Word>
constexpr Word kLow = static_cast<Word>(static_cast<Word>(~Word{0}) >> 8);  // all but the top byte

template <class Word>
PERDURE_LOOP Word turn(Word x) {
    if constexpr (sizeof(Word) == 1) {
        return static_cast<Word>(x << 1 | x >> 7);
    } else {
        const Word sign = static_cast<Word>(x >> (kBits<Word> - 1) << (kBits<Word> - 9));
        const Word top = static_cast<Word>(static_cast<Word>(x << 1) & static_cast<Word>(~kLow<Word>));
        return static_cast<Word>(top | sign | (x & (kLow<Word> >> 1)));
    }
}

template <class Word>
PERDURE_LOOP Word turn_back(Word y) {
    if constexpr (sizeof(Word) == 1) {
        return static_cast<Word>(y >> 1 | y << 7);
    } else {
        const Word sign = static_cast<Word>(y << 8 & ~(static_cast<Word>(~Word{0}) >> 1));
        const Word top = static_cast<Word>((y & static_cast<Word>(~kLow<Word>)) >> 1);
        return static_cast<Word>(sign | top | (y & (kLow<Word> >> 1)));
    }
}

// All bits of the result are the sign of `x`.
template <class Word>
PERDURE_LOOP Word sign(Word x) {
    return static_cast<Word>(static_cast<std::make_signed_t<Word>>(x) >> (kBits<Word> - 1));
}

// Floats in the order of their values, as two's complement; its own inverse.
template <class Word, bool kFloats>
PERDURE_LOOP Word ordered(Word x) {
    if constexpr (!kFloats) return x;
    return static_cast<Word>(x ^ (sign(x) & static_cast<Word>(static_cast<Word>(~Word{0}) >> 1)));
}

template <class Word, Change kChange, bool kFloats>
PERDURE_LOOP Word changed(Word x, Word base) {
    if constexpr (kChange == Change::turned) return turn(x);
    if constexpr (kChange == Change::xored) return turn(static_cast<Word>(x ^ base));
    if constexpr (kChange == Change::distance) {
        const Word distance = static_cast<Word>(ordered<Word, kFloats>(x) - ordered<Word, kFloats>(base));
        return static_cast<Word>(static_cast<Word>(distance << 1) ^ sign(distance));
    }
    return x;
}

template <class Word, Change kChange, bool kFloats>
PERDURE_LOOP Word restored(Word y, Word base) {
    if constexpr (kChange == Change::turned) return turn_back(y);
    if constexpr (kChange == Change::xored) return static_cast<Word>(turn_back(y) ^ base);
    if constexpr (kChange == Change::distance) {
        const Word distance = static_cast<Word>(static_cast<Word>(y >> 1) ^ static_cast<Word>(-(y & 1)));
        return ordered<Word, kFloats>(static_cast<Word>(ordered<Word, kFloats>(base) + distance));
    }
    return y;
}

constexpr bool needs_base(Change change) { return change == Change::distance || change == Change::xored; }

// Pieces that stay in the nearest cache, so that one simple loop a plane (which compilers make vectors of) costs no more.
constexpr std::size_t kPiece = 2048;

template <class Word, Change kChange, bool kFloats>
PERDURE_LOOP void split_all(const u8* x, const u8* base, std::size_t n, u8* const* to) {
    alignas(64) Word words[kPiece];
    for (std::size_t start = 0; start < n; start += kPiece) {
        const std::size_t size = n - start < kPiece ? n - start : kPiece;
        for (std::size_t i = 0; i < size; ++i) {
            Word now, before = 0;
            std::memcpy(&now, x + (start + i) * sizeof(Word), sizeof(Word));
            if constexpr (needs_base(kChange)) std::memcpy(&before, base + (start + i) * sizeof(Word), sizeof(Word));
            words[i] = changed<Word, kChange, kFloats>(now, before);
        }
        for (std::size_t plane = 0; plane < sizeof(Word); ++plane) {
            u8* at = to[plane] + start;
            const unsigned shift = static_cast<unsigned>(8 * (sizeof(Word) - 1 - plane));
            for (std::size_t i = 0; i < size; ++i) at[i] = static_cast<u8>(words[i] >> shift);
        }
    }
}

template <class Word, Change kChange, bool kFloats>
PERDURE_LOOP void join_all(const u8* const* planes, const u8* base, std::size_t n, u8* out) {
    for (std::size_t start = 0; start < n; start += kPiece) {
        const std::size_t size = n - start < kPiece ? n - start : kPiece;
        const u8* from[sizeof(Word)];
        for (std::size_t plane = 0; plane < sizeof(Word); ++plane) from[plane] = planes[plane] + start;
        const u8* below = needs_base(kChange) ? base + start * sizeof(Word) : nullptr;
        u8* to = out + start * sizeof(Word);
#pragma GCC ivdep
        for (std::size_t i = 0; i < size; ++i) {
            Word word = from[0][i];
            if constexpr (sizeof(Word) > 1) {
#pragma GCC unroll 8
                for (std::size_t plane = 1; plane < sizeof(Word); ++plane) {
                    word = static_cast<Word>(word << 8 | from[plane][i]);
                }
            }
            Word before = 0;
            if constexpr (needs_base(kChange)) std::memcpy(&before, below + i * sizeof(Word), sizeof(Word));
            word = restored<Word, kChange, kFloats>(word, before);
            std::memcpy(to + i * sizeof(Word), &word, sizeof(Word));
        }
    }
}

template <class Word>
PERDURE_LOOP void split_word(bool floats, Change change, const u8* x, const u8* base, std::size_t n, u8* const* to) {
    switch (change) {
        case Change::none: return split_all<Word, Change::none, false>(x, base, n, to);
        case Change::turned: return split_all<Word, Change::turned, false>(x, base, n, to);
        case Change::xored: return split_all<Word, Change::xored, false>(x, base, n, to);
        case Change::distance: break;
    }
    if (floats) return split_all<Word, Change::distance, true>(x, base, n, to);
    split_all<Word, Change::distance, false>(x, base, n, to);
}

template <class Word>
PERDURE_LOOP void join_word(bool floats, Change change, const u8* const* planes, const u8* base, std::size_t n, u8* out) {
    switch (change) {
        case Change::none: return join_all<Word, Change::none, false>(planes, base, n, out);
        case Change::turned: return join_all<Word, Change::turned, false>(planes, base, n, out);
        case Change::xored: return join_all<Word, Change::xored, false>(planes, base, n, out);
        case Change::distance: break;
    }
    if (floats) return join_all<Word, Change::distance, true>(planes, base, n, out);
    join_all<Word, Change::distance, false>(planes, base, n, out);
}

PERDURE_LOOP void split_any(unsigned width, bool floats, Change change, const u8* x, const u8* base, std::size_t n,
                            u8* const* to) {
    switch (width) {
        case 1: return split_word<std::uint8_t>(floats, change, x, base, n, to);
        case 2: return split_word<std::uint16_t>(floats, change, x, base, n, to);
        case 4: return split_word<std::uint32_t>(floats, change, x, base, n, to);
        default: return split_word<std::uint64_t>(floats, change, x, base, n, to);
    }
}

PERDURE_LOOP void join_any(unsigned width, bool floats, Change change, const u8* const* planes, const u8* base,
                           std::size_t n, u8* out) {
    switch (width) {
        case 1: return join_word<std::uint8_t>(floats, change, planes, base, n, out);
        case 2: return join_word<std::uint16_t>(floats, change, planes, base, n, out);
        case 4: return join_word<std::uint32_t>(floats, change, planes, base, n, out);
        default: return join_word<std::uint64_t>(floats, change, planes, base, n, out);
    }
}

}  // namespace

}  // namespace perdure::planes
