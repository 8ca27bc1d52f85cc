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

    // Whether everything was used up and the states are what an encoder starts with.
    bool done() const;

    u8 class_of[256];  // of a slot
    u8 freq[kClasses], start[kClasses], bits[kClasses], first[kClasses];
    bool has_bits;
    u8 states[kStateBytes];
    Backward symbols, raws;
    const u8 *literal, *literals_end;
};

}  // namespace perdure::rans
