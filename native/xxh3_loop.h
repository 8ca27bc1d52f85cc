// The loop of XXH3 over whole blocks: the one part that is written again for each `Simd` level.
//
// A block is 16 stripes of 64 bytes. For stripe s and lane i, with `value = stripe[i] ^ key[s][i]`:
//     lanes[i ^ 1] += stripe[i];   lanes[i] += low32(value) * high32(value)
// and after the 16 stripes each lane is scrambled: `lane = (lane ^ lane >> 47 ^ key) * prime`.
// Only additions depend on the stripe before, so the loop runs as fast as memory delivers. A processor's own prefetch
// stops at the end of a page; the vector loops ask for the page after it themselves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd.h"

namespace perdure::xxh3 {

inline constexpr std::size_t kAheadBytes = 4096;  // how far before its use the vector loops ask for a stripe

struct Loop {
    // Consume blocks; `lanes` is aligned to 64, `in` to nothing.
    void (*absorb)(std::uint64_t* lanes, const std::uint8_t* in, std::size_t n_blocks);
    // The same, and store what was consumed at `out`, aligned to 64; each byte of `in` is read once.
    void (*absorb_copy)(std::uint64_t* lanes, const std::uint8_t* in, std::uint8_t* out, std::size_t n_blocks);
};

// The loop of `level`; xxh3_loops_x86.cpp or xxh3_loops_portable.cpp, as the architecture has it.
const Loop& loop(Simd level);

// One stripe, portable: the last block of an input is consumed with it.
void absorb_stripe(std::uint64_t* lanes, const std::uint8_t* stripe, const std::uint8_t* key);

extern const Loop kScalarLoop;
extern const Loop kAvx2Loop;
extern const Loop kAvx512Loop;

}  // namespace perdure::xxh3
