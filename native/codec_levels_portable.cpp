#include "cluster.h"
#include "mask.h"
#include "planes_split.h"
#include "rans.h"

namespace perdure {

const rans::Kernels& rans::kernels(Simd) { return kScalar; }

const planes::Splitter& planes::splitter(Simd) { return kScalarSplitter; }

const cluster::Loops& cluster::loops(Simd) { return kScalarLoops; }

const mask::Loops& mask::loops(Simd) { return kNoLoops; }

}  // namespace perdure
