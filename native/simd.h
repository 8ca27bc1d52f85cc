// Which vector instructions the kernels use: found once, from the processor at run time, never from the compiler's flags.
//
// One binary runs on every processor of its architecture. `simd_x86.cpp` knows three levels; on any other architecture
// `simd_portable.cpp` takes its place and knows `scalar` alone. Every level gives the same bytes; only the speed differs.
#pragma once

#include <string_view>
#include <vector>

namespace perdure {

enum class Simd { scalar = 0, avx2 = 1, avx512 = 2 };

// The levels that this processor can run, slowest first; never empty.
std::vector<Simd> simd_levels();

// The level in use: the fastest one, unless `use_simd` chose another.
Simd simd();

// Use `level`, which must be one of `simd_levels()`, from the next kernel call of this process on. For tests and
// measurements; safe from any thread, since all levels give the same bytes.
void use_simd(Simd level);

std::string_view name(Simd level);

}  // namespace perdure
