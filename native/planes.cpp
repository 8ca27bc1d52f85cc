#include "planes.h"

#include <algorithm>
#include <cstring>

#include "planes_plan.h"
#include "rans_model.h"

namespace perdure {

using namespace rans;
using namespace planes;

namespace {

u8* encode_plane(const Kernels& kernels, const PlanePlan& plan, const u8* bytes, std::size_t n, const Ahead& ahead, u8* out) {
    if (std::memcmp(bytes, bytes + 1, n - 1) == 0) {
        *out++ = kSame;
        *out++ = bytes[0];
        return out;
    }
    if (plan.n != 0) {
        Scratch& scratch = Scratch::of_thread();
        Ranges ranges;
        Model model;
        prepare(plan, ranges, model);
        u32 counts[kCells];
        const std::size_t literals =
            kernels.byte_classify(bytes, n, ranges, scratch.index, scratch.raw, scratch.literals, counts);
        set_frequencies(model, counts);
        if (cost_bits(model, counts) / 8 + literals + kHeader + kStateBytes < n - n / 128) {
            std::size_t symbols = 0, raws = 0;
            u8 states[kStateBytes], tables[2 + kClasses];
            const std::size_t padded = (n + kRound - 1) / kRound * kRound;
            kernels.encode(scratch.index, scratch.raw, padded, model, ahead, scratch.symbols, scratch.raws, states, symbols, raws);
            const auto table_bytes = static_cast<std::size_t>(write_frequencies(model, tables) - tables);
            if (kHeader + table_bytes + symbols + raws + literals + kStateBytes < 1 + n) {
                *out = kCoded;
                put_u32(out + 1, symbols);
                put_u32(out + 5, raws);
                put_u32(out + 9, literals);
                out = std::copy(tables, tables + table_bytes, out + kHeader);
                std::memcpy(out, scratch.symbols, symbols);
                out += symbols;
                std::memcpy(out, scratch.raws, raws);
                out += raws;
                std::memcpy(out, scratch.literals, literals);
                out += literals;
                return std::copy(states, states + kStateBytes, out);
            }
        }
    }
    *out++ = kRaw;
    std::memcpy(out, bytes, n);
    return out + n;
}

}  // namespace

std::size_t planes_room(PlanesKind kind, std::size_t n) {
    const std::size_t blocks = (n >> kLeastLog2) + 1;
    return 2 + kind.width * (1 + 2 * kMostRanges) + n * kind.width + 2 * kind.width * blocks;
}

std::size_t planes_encode(PlanesKind kind, const u8* x, const u8* base, std::size_t n, u8* out) {
    const Kernels& kernels = rans::kernels(simd());
    const planes::Splitter& splitter = planes::splitter(simd());
    const Plan plan = choose(kind, x, base, n);
    u8 *at = write_plan(plan, kind.width, out), *bytes = Scratch::of_thread().planes;
    const std::size_t most = std::size_t{1} << plan.block_log2;
    for (std::size_t start = 0; start < n; start += most) {
        const std::size_t size = std::min(most, n - start);
        u8* to[8];
        for (unsigned plane = 0; plane < kind.width; ++plane) to[plane] = bytes + plane * size;
        splitter.split(kind.width, kind.floats, plan.change, x + start * kind.width,
                       base == nullptr ? nullptr : base + start * kind.width, size, to);
        const std::size_t step = kRound * kind.width, next = (start + size) * kind.width;
        Ahead ahead;
        ahead.add(x + next, step);
        // The base of the next block, or else what this one becomes: for both, memory is too slow.
        ahead.add(base != nullptr ? base + next : at, step);
        for (unsigned plane = 0; plane < kind.width; ++plane) {
            at = encode_plane(kernels, plan.plane[plane], bytes + plane * size, size, ahead, at);
            if (plan.plane[plane].n != 0) ahead = {};  // what the first coded plane asked for is there
        }
    }
    return static_cast<std::size_t>(at - out);
}

}  // namespace perdure
