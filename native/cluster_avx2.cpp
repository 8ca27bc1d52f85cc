// The loops of `cluster` with AVX2.
#include "cluster_loops.h"

namespace perdure::cluster {

namespace {

__attribute__((target("avx2")))
bool quantize(const u8* x, unsigned value_bits, u8& middle, u16* cells, u64& signs) {
    return quantize_group(x, value_bits, middle, cells, signs);
}

__attribute__((target("avx2")))
bool restore(const u16* cells, u64 signs, unsigned value_bits, u8 middle, u8* x) {
    return restore_group(cells, signs, value_bits, middle, x);
}

__attribute__((target("avx2")))
void compare(const u8* x, const u8* y, std::size_t n, Sums& sums) { compare_all<4>(x, y, n, sums); }

}  // namespace

const Loops kAvx2Loops{quantize, restore, compare};

}  // namespace perdure::cluster
