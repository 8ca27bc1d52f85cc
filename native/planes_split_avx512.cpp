// The loops of `planes` with AVX-512. Needs what rans_avx512.h needs.
#include "planes_loops.h"

namespace perdure::planes {

namespace {

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,prefer-vector-width=512")))
void split(unsigned width, bool floats, Change change, const u8* x, const u8* base, std::size_t n, u8* to,
           std::size_t stride) {
    split_any(width, floats, change, x, base, n, to, stride);
}

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,prefer-vector-width=512")))
void join(unsigned width, bool floats, Change change, const u8* const* planes, const u8* base, std::size_t n, u8* out) {
    join_any(width, floats, change, planes, base, n, out);
}

}  // namespace

const Splitter kAvx512Splitter{split, join};

}  // namespace perdure::planes
