// The levels of an x86-64 processor. The compiler's own check asks the operating system too (whether it saves the wide
// registers), which reading CPUID alone would miss.
#include "simd.h"

namespace perdure {

std::vector<Simd> simd_levels() {
    std::vector<Simd> levels{Simd::scalar};
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) levels.push_back(Simd::avx2);
    if (__builtin_cpu_supports("avx512f")) levels.push_back(Simd::avx512);
    return levels;
}

}  // namespace perdure
