#include "xxh3_loop.h"

namespace perdure::xxh3 {

const Loop& loop(Simd) { return kScalarLoop; }

}  // namespace perdure::xxh3
