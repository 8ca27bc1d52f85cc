// The versions of predict.h's loops, one for each `Simd` level, and which of them a processor takes.
#pragma once

#include "predict.h"
#include "simd.h"

namespace perdure::predict {

struct Loops {
    void (*update)(Real kind, const std::uint8_t* x, double keep, const PredictTerm* terms, std::size_t n_terms,
                   std::size_t n, std::uint8_t* out);
    void (*square)(Real kind, const PredictSquare& how, std::size_t n, std::uint8_t* out);
    void (*rounding)(Real kind, Narrow to, const std::uint8_t* x, std::size_t n, std::uint8_t* out);
};

const Loops& loops(Simd level);

extern const Loops kScalarLoops;
extern const Loops kAvx2Loops;
extern const Loops kAvx512Loops;

}  // namespace perdure::predict
