#include "mask.h"
#include "rans.h"

namespace perdure {

const rans::Kernels& rans::kernels(Simd) { return kScalar; }

const mask::Loops& mask::loops(Simd) { return kNoLoops; }

}  // namespace perdure
