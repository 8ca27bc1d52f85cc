// The loops of `planes` with AVX2.
#include "planes_loops.h"

namespace perdure::planes {

namespace {

__attribute__((target("avx2")))
void split(unsigned width, bool floats, Change change, const u8* x, const u8* base, std::size_t n, u8* to,
           std::size_t stride) {
    split_any(width, floats, change, x, base, n, to, stride);
}

__attribute__((target("avx2")))
void join(unsigned width, bool floats, Change change, const u8* const* planes, const u8* base, std::size_t n, u8* out) {
    join_any(width, floats, change, planes, base, n, out);
}

}  // namespace

const Splitter kAvx2Splitter{split, join};

}  // namespace perdure::planes
