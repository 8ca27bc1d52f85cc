// What a tile of `planes` is coded with: which change, which blocks, which ranges in each plane. Chosen, written and read here.
#pragma once

#include "planes.h"
#include "planes_split.h"
#include "rans.h"

namespace perdure::planes {

using rans::u8;

enum Mode : u8 { kSame = 0, kRaw = 1, kCoded = 2 };

inline constexpr unsigned kLeastLog2 = 15, kMostLog2 = 17;  // of the elements of a block
inline constexpr std::size_t kHeader = 1 + 3 * 4;           // of a coded plane: mode and sizes
inline constexpr unsigned kMostRanges = 15;

// How the values of a plane become classes: each is a range of 2^k values that starts at a multiple of 2^k, and its k raw bits
// say which. What is in none is an escape, a literal byte. Without ranges the plane is not coded.
struct PlanePlan {
    u8 n = 0;
    u8 first[kMostRanges] = {};
    u8 bits[kMostRanges] = {};
};

struct Plan {
    Change change = Change::none;
    unsigned block_log2 = kMostLog2;
    PlanePlan plane[8];
};

inline unsigned coded_planes(const Plan& plan, unsigned width) {
    unsigned n = 0;
    for (unsigned plane = 0; plane < width; ++plane) n += plan.plane[plane].n != 0;
    return n;
}

// The plan that makes a sample of the elements shortest.
Plan choose(PlanesKind kind, const u8* x, const u8* base, std::size_t n);

// Returns the end of what it wrote.
u8* write_plan(const Plan& plan, unsigned width, u8* out);

// Returns the end of what it read; null if [in, end) holds no plan.
const u8* read_plan(Plan& plan, unsigned width, bool has_base, const u8* in, const u8* end);

// The classes of a plane, and its model but for frequencies.
void prepare(const PlanePlan& plan, rans::Ranges& ranges, rans::Model& model);

}  // namespace perdure::planes
