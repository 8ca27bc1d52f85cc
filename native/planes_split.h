// Elements to planes of bytes and back. Plane 0 is the most significant byte.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure::planes {

enum class Change : std::uint8_t {
    none = 0,
    turned = 1,    // rotated left by one bit: the sign goes to the bottom, a bfloat16's or float32's exponent is a byte
    distance = 2,  // to the base, in order, with the sign at the bottom: 0, -1, 1, -2, 2 ... become 0, 1, 2, 3, 4 ...
    xored = 3,     // with the base, rotated left by one bit
};

// Planes of `n` elements at `to + stride * plane`; `base` is read where the change needs it.
void split(unsigned width, bool floats, Change change, const std::uint8_t* x, const std::uint8_t* base, std::size_t n,
           std::uint8_t* to, std::size_t stride);

// The elements again, from one address a plane.
void join(unsigned width, bool floats, Change change, const std::uint8_t* const* planes, const std::uint8_t* base,
          std::size_t n, std::uint8_t* out);

}  // namespace perdure::planes
