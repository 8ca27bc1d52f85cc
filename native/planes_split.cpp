#include "planes_split.h"

#include <cstring>
#include <type_traits>

namespace perdure::planes {

namespace {

using u8 = std::uint8_t;

template <class Word>
constexpr unsigned kBits = 8 * sizeof(Word);

template <class Word>
Word turn(Word x) {
    return static_cast<Word>(x << 1 | x >> (kBits<Word> - 1));
}

template <class Word>
Word turn_back(Word x) {
    return static_cast<Word>(x >> 1 | x << (kBits<Word> - 1));
}

// All bits of the result are the sign of `x`.
template <class Word>
Word sign(Word x) {
    return static_cast<Word>(static_cast<std::make_signed_t<Word>>(x) >> (kBits<Word> - 1));
}

// Floats in the order of their values, as two's complement; its own inverse.
template <class Word, bool kFloats>
Word ordered(Word x) {
    if constexpr (!kFloats) return x;
    return static_cast<Word>(x ^ (sign(x) & static_cast<Word>(static_cast<Word>(~Word{0}) >> 1)));
}

template <class Word, Change kChange, bool kFloats>
Word changed(Word x, Word base) {
    if constexpr (kChange == Change::turned) return turn(x);
    if constexpr (kChange == Change::xored) return turn(static_cast<Word>(x ^ base));
    if constexpr (kChange == Change::distance) {
        const Word distance = static_cast<Word>(ordered<Word, kFloats>(x) - ordered<Word, kFloats>(base));
        return static_cast<Word>(static_cast<Word>(distance << 1) ^ sign(distance));
    }
    return x;
}

template <class Word, Change kChange, bool kFloats>
Word restored(Word y, Word base) {
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
void split_all(const u8* x, const u8* base, std::size_t n, u8* to, std::size_t stride) {
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
            u8* at = to + stride * plane + start;
            const unsigned shift = static_cast<unsigned>(8 * (sizeof(Word) - 1 - plane));
            for (std::size_t i = 0; i < size; ++i) at[i] = static_cast<u8>(words[i] >> shift);
        }
    }
}

template <class Word, Change kChange, bool kFloats>
void join_all(const u8* const* planes, const u8* base, std::size_t n, u8* out) {
    alignas(64) Word words[kPiece];
    for (std::size_t start = 0; start < n; start += kPiece) {
        const std::size_t size = n - start < kPiece ? n - start : kPiece;
        for (std::size_t i = 0; i < size; ++i) words[i] = planes[0][start + i];
        for (std::size_t plane = 1; plane < sizeof(Word); ++plane) {
            const u8* at = planes[plane] + start;
            if constexpr (sizeof(Word) > 1) {
                for (std::size_t i = 0; i < size; ++i) words[i] = static_cast<Word>(words[i] << 8 | at[i]);
            }
        }
        for (std::size_t i = 0; i < size; ++i) {
            Word before = 0;
            if constexpr (needs_base(kChange)) std::memcpy(&before, base + (start + i) * sizeof(Word), sizeof(Word));
            const Word now = restored<Word, kChange, kFloats>(words[i], before);
            std::memcpy(out + (start + i) * sizeof(Word), &now, sizeof(Word));
        }
    }
}

template <class Word, bool kFloats>
void split_word(Change change, const u8* x, const u8* base, std::size_t n, u8* to, std::size_t stride) {
    switch (change) {
        case Change::none: return split_all<Word, Change::none, kFloats>(x, base, n, to, stride);
        case Change::turned: return split_all<Word, Change::turned, kFloats>(x, base, n, to, stride);
        case Change::distance: return split_all<Word, Change::distance, kFloats>(x, base, n, to, stride);
        case Change::xored: return split_all<Word, Change::xored, kFloats>(x, base, n, to, stride);
    }
}

template <class Word, bool kFloats>
void join_word(Change change, const u8* const* planes, const u8* base, std::size_t n, u8* out) {
    switch (change) {
        case Change::none: return join_all<Word, Change::none, kFloats>(planes, base, n, out);
        case Change::turned: return join_all<Word, Change::turned, kFloats>(planes, base, n, out);
        case Change::distance: return join_all<Word, Change::distance, kFloats>(planes, base, n, out);
        case Change::xored: return join_all<Word, Change::xored, kFloats>(planes, base, n, out);
    }
}

}  // namespace

void split(unsigned width, bool floats, Change change, const u8* x, const u8* base, std::size_t n, u8* to,
           std::size_t stride) {
    const auto go = [&]<class Word>(Word) {
        floats ? split_word<Word, true>(change, x, base, n, to, stride)
               : split_word<Word, false>(change, x, base, n, to, stride);
    };
    width == 1 ? go(std::uint8_t{}) : width == 2 ? go(std::uint16_t{}) : width == 4 ? go(std::uint32_t{}) : go(std::uint64_t{});
}

void join(unsigned width, bool floats, Change change, const u8* const* planes, const u8* base, std::size_t n, u8* out) {
    const auto go = [&]<class Word>(Word) {
        floats ? join_word<Word, true>(change, planes, base, n, out) : join_word<Word, false>(change, planes, base, n, out);
    };
    width == 1 ? go(std::uint8_t{}) : width == 2 ? go(std::uint16_t{}) : width == 4 ? go(std::uint32_t{}) : go(std::uint64_t{});
}

}  // namespace perdure::planes
