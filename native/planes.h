// The codec `planes`: the bytes of elements, grouped by their place in the element, each group entropy-coded where that pays.
//
// With a base the elements may first become their distance to it, as integers in the order of the floats, or their XOR with it.
// A tile is a header and blocks of 2^15 to 2^17 elements. docs/spec/codecs.md tells every byte.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure {

// The elements of a tile: 1, 2, 4 or 8 bytes; `floats` if their top bit is a sign apart from the magnitude.
struct PlanesKind {
    unsigned width;
    bool floats;
};

// The most bytes that `planes_encode` writes for `n` elements.
std::size_t planes_room(PlanesKind kind, std::size_t n);

// Encode `n` elements at `x`, against those at `base` unless that is null or does not pay, into `out`; returns the bytes.
std::size_t planes_encode(PlanesKind kind, const std::uint8_t* x, const std::uint8_t* base, std::size_t n,
                          std::uint8_t* out);

// Decode into `out`, which does not overlap `base`; false if [in, in + nbytes) is nothing that an encoder wrote with a base if
// `base` is not null, and else without one.
bool planes_decode(PlanesKind kind, const std::uint8_t* in, std::size_t nbytes, const std::uint8_t* base, std::size_t n,
                   std::uint8_t* out);

}  // namespace perdure
