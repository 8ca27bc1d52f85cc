#include "predict_levels.h"

namespace perdure {

const predict::Loops& predict::loops(Simd) { return kScalarLoops; }

}  // namespace perdure
