// Which version of the codecs' loops an x86-64 processor takes.
#include "cluster.h"
#include "mask.h"
#include "planes_split.h"
#include "rans.h"

namespace perdure {

namespace {

// What rans_avx512.h and mask_avx512.cpp need beyond AVX512F; a processor that lacks it takes the next version.
bool moves_bytes() {
    static const bool has = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
                            __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512bitalg") &&
                            __builtin_cpu_supports("gfni") && __builtin_cpu_supports("bmi2");
    return has;
}

}  // namespace

const cluster::Loops& cluster::loops(Simd level) {
    if (level == Simd::avx512 && moves_bytes()) return kAvx512Loops;
    return level == Simd::scalar ? kScalarLoops : kAvx2Loops;
}

const rans::Kernels& rans::kernels(Simd level) {
    if (level == Simd::avx512 && moves_bytes()) return kAvx512;
    return level == Simd::scalar ? kScalar : kAvx2;
}

const planes::Splitter& planes::splitter(Simd level) {
    if (level == Simd::avx512 && moves_bytes()) return kAvx512Splitter;
    return level == Simd::scalar ? kScalarSplitter : kAvx2Splitter;
}

const mask::Loops& mask::loops(Simd level) {
    if (level == Simd::avx512 && moves_bytes()) return kAvx512Loops;
    return level == Simd::scalar ? kNoLoops : kAvx2Loops;
}

}  // namespace perdure
