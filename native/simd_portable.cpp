// The levels of an architecture for which there are no vector kernels: the portable one.
#include "simd.h"

namespace perdure {

std::vector<Simd> simd_levels() { return {Simd::scalar}; }

}  // namespace perdure
