// The lossy codec `cluster`: float32 numbers as the cluster that they lie in and a value of 4 to 8 bits within it.
//
// Theory. Moments of optimizers spread over many powers of two, and what matters of each is its ratio to the truth. So a cluster
// is an octave [2^k, 2^(k+1)), and the value is one of 2^b even steps in it: the relative error of every element is at most
// 2^-(b+1). Rounding is one addition to the float's bits, since these are in the order of the numbers. Octaves are counted from
// the middle one of the 64 elements around: what is left of the exponent is a small number, and `planes` codes it in 2 to 3 bits.
// Zeros are a cluster of their own; what is subnormal, infinite, not a number, or more than 126 octaves away is a literal. Signs
// lie apart, unless all are the same. So sign and zero never change, and nothing becomes zero.
//
// Integers alone: every machine writes and reads the same bits. docs/spec/codecs.md tells every byte.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd.h"

namespace perdure {

// The most bytes that `cluster_encode` writes for `n` elements.
std::size_t cluster_room(std::size_t n);

// Encode the `n` float32 at `x`, any address, with `value_bits` (4 to 8) into `out`; returns the bytes.
std::size_t cluster_encode(const std::uint8_t* x, std::size_t n, unsigned value_bits, std::uint8_t* out);

// Decode into `out`; false if [in, in + nbytes) is nothing that an encoder wrote.
bool cluster_decode(const std::uint8_t* in, std::size_t nbytes, std::size_t n, std::uint8_t* out);

// The error of the `n` float32 at `y` against those at `x`: over all that are finite in x, the largest |x - y|; over those of
// them that are not zero, the largest and the sum of |x - y| / |x|; the sum of (x - y)^2 over the former; how many of each. The
// sums have 16 lanes, element i in lane i mod 16, that are added up in order: the same bits on every machine.
void float32_error(const std::uint8_t* x, const std::uint8_t* y, std::size_t n, double* sums, std::uint64_t* counts);

namespace cluster {

inline constexpr std::size_t kGroup = 64;    // elements that share a middle octave
inline constexpr std::size_t kLanes = 16;    // of an error
inline constexpr std::uint8_t kMiddle = 128; // the label of the middle octave
inline constexpr std::uint8_t kZero = 0, kLiteral = 255;  // labels that are no octave

struct Sums {
    double largest[kLanes] = {}, relative[kLanes] = {}, sum_relative[kLanes] = {}, sum_square[kLanes] = {};
    std::uint64_t finite = 0, some = 0;
};

// One version for each `Simd` level: the same loops (cluster_loops.h), made into other instructions by the compiler.
struct Loops {
    // One group. `middle` holds the middle octave of the group before, and afterwards that of this one. Writes labels and values
    // (256 * label + value) and signs (bit i: element i); whether there is a literal.
    bool (*quantize)(const std::uint8_t* x, unsigned value_bits, std::uint8_t& middle, std::uint16_t* cells, std::uint64_t& signs);
    // The other way round; literals become anything. Whether there is one.
    bool (*restore)(const std::uint16_t* cells, std::uint64_t signs, unsigned value_bits, std::uint8_t middle, std::uint8_t* x);
    // `n` elements, a multiple of kLanes.
    void (*compare)(const std::uint8_t* x, const std::uint8_t* y, std::size_t n, Sums& sums);
};

const Loops& loops(Simd level);

extern const Loops kScalarLoops;
extern const Loops kAvx2Loops;
extern const Loops kAvx512Loops;

}  // namespace cluster

}  // namespace perdure
