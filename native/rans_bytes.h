// A coded plane of bytes while it is decoded, piece after piece, so that what a piece becomes next finds it in the nearest cache.
#pragma once

#include "rans.h"

namespace perdure::rans {

// Symbols of one piece. All pieces but the last are this long.
inline constexpr std::size_t kPiece = 16 * kRound;

// Made where it stays: it may point into itself.
struct ByteReader {
    ByteReader(const Model& model, const Ranges& ranges, const Streams& in);
    ByteReader(const ByteReader&) = delete;
    ByteReader& operator=(const ByteReader&) = delete;

    // Before each round, for those who have the places of both streams in registers: they are moved if a stream ends soon. False if
    // more was taken than there is. Without raw bits nobody reads that stream, which is empty.
    template <bool kBits>
    __attribute__((always_inline)) inline bool ready(const u8*& symbol, const u8*& raw) {
        if (symbol - symbols.begin >= static_cast<std::ptrdiff_t>(kRound) &&
            (!kBits || raw - raws.begin >= static_cast<std::ptrdiff_t>(kRound))) [[likely]] {
            return true;
        }
        if (!near_begin(symbol, raw)) return false;
        symbol = symbols.at;
        raw = raws.at;
        return true;
    }

    // Whether everything was used up and the states are what an encoder starts with.
    bool done() const;

    u8 class_of[256];  // of a slot
    u8 freq[kClasses], start[kClasses], bits[kClasses], first[kClasses];
    bool has_bits;
    u8 states[kStateBytes];
    Backward symbols, raws;
    const u8 *literal, *literals_end;

private:
    bool near_begin(const u8* symbol, const u8* raw);
};

}  // namespace perdure::rans
