// Elements to planes of bytes and back. Plane 0 is the most significant byte.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd.h"

namespace perdure::planes {

enum class Change : std::uint8_t {
    none = 0,
    turned = 1,    // the sign goes below the next 8 bits, so that a bfloat16's or float32's exponent is a byte
    distance = 2,  // to the base, in order, with the sign at the bottom: 0, -1, 1, -2, 2 ... become 0, 1, 2, 3, 4 ...
    xored = 3,     // with the base, then turned
};

// One version for each `Simd` level: the portable loops (planes_loops.h), and vectors (planes_vectors.h) for 2 and 4 bytes.
struct Splitter {
    // Planes of `n` elements, each to its address; `base` is read where the change needs it.
    void (*split)(unsigned width, bool floats, Change change, const std::uint8_t* x, const std::uint8_t* base, std::size_t n,
                  std::uint8_t* const* to);
    // The elements again, from one address a plane.
    void (*join)(unsigned width, bool floats, Change change, const std::uint8_t* const* planes, const std::uint8_t* base,
                 std::size_t n, std::uint8_t* out);
};

const Splitter& splitter(Simd level);

extern const Splitter kScalarSplitter;
extern const Splitter kAvx2Splitter;
extern const Splitter kAvx512Splitter;

}  // namespace perdure::planes
