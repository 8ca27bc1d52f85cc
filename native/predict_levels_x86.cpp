// Which version of the predicting loops an x86-64 processor takes.
#include "predict_levels.h"

namespace perdure {

const predict::Loops& predict::loops(Simd level) {
    static const bool wide = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                             __builtin_cpu_supports("avx512vl");
    if (level == Simd::avx512 && wide) return kAvx512Loops;
    return level == Simd::scalar ? kScalarLoops : kAvx2Loops;
}

}  // namespace perdure
