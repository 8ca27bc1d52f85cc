// What an optimizer does to a tensor, as arithmetic that every machine does alike: predictions that serve as a frame's base.
//
// Elementwise. Every operation is one correctly rounded operation of the elements' own type (binary32 or binary64), in the
// order that the formulas below have, left to right, with no fused multiply-add; subnormals count; coefficients are rounded
// to the type first. So the bits are the same with any compiler, processor and `Simd` level, whatever floating-point
// environment the calling thread is in. Where a result is not a number, the bits of the element of the first input stand
// in its place, so that no NaN depends on a processor's taste. No input has to be aligned; `out` overlaps no input.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure {

enum class Real : std::uint8_t { float32 = 0, float64 = 1 };

// One earlier or present step's share in an update: by * moment / (sqrt(square) + eps), or by * moment if `square` is null.
struct PredictTerm {
    const std::uint8_t* moment;
    const std::uint8_t* square;
    double by;
    double eps;
};

// keep * x - term 0 - term 1 ...: a tensor after the optimizer's steps.
void predict_update(Real kind, const std::uint8_t* x, double keep, const PredictTerm* terms, std::size_t n_terms,
                    std::size_t n, std::uint8_t* out);

// keep * square + by * (d * d) + rest * (before * before), d = moment - fade * before: a second moment from its old self and
// the old and new first moment. Negative results (and -0) count as not a number.
struct PredictSquare {
    const std::uint8_t* square;
    const std::uint8_t* before;
    const std::uint8_t* moment;
    double keep, fade, by, rest;
};
void predict_square(Real kind, const PredictSquare& how, std::size_t n, std::uint8_t* out);

enum class Narrow : std::uint8_t { bfloat16 = 0, float16 = 1, float32 = 2 };

// Round to nearest, ties to even, to a narrower type: binary64 goes to 16 bits by way of binary32. A NaN becomes 0x7fc0 in
// bfloat16; else it keeps its sign and the top of its payload, and becomes quiet. `to` is narrower than `kind`.
void predict_rounding(Real kind, Narrow to, const std::uint8_t* x, std::size_t n, std::uint8_t* out);

}  // namespace perdure
