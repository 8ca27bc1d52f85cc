// The loops of `planes`, portable.
#include "planes_loops.h"

namespace perdure::planes {

namespace {

void split(unsigned width, bool floats, Change change, const u8* x, const u8* base, std::size_t n,
           u8* const* to) {
    split_any(width, floats, change, x, base, n, to);
}

void join(unsigned width, bool floats, Change change, const u8* const* planes, const u8* base, std::size_t n, u8* out) {
    join_any(width, floats, change, planes, base, n, out);
}

}  // namespace

const Splitter kScalarSplitter{split, join};

}  // namespace perdure::planes
