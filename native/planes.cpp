#include "planes.h"

#include <algorithm>
#include <cstring>

#include "planes_split.h"
#include "rans_model.h"

namespace perdure {

using namespace rans;
using planes::Change;

namespace {

enum Mode : u8 { kSame = 0, kRaw = 1, kCoded = 2 };

// How the values of a plane become classes: not at all; the 15 most frequent ones; the 15 most frequent groups of 2, 4, 8 or
// 16 neighbours; or the classes of `ulp`, finer near 0. What is in no class is an escape with 8 raw bits.
enum Family : u8 { kNone = 0, kValues = 1, kGroups16 = 5, kLogs = 6 };

constexpr std::size_t kBlockBytes = std::size_t{1} << 18;
constexpr std::size_t kHeader = 1 + 2 * 4;  // of a coded plane: mode and sizes
constexpr std::size_t kSamples = 64;        // groups of 64 elements that are looked at to choose changes and families
constexpr unsigned kListed = 15;

struct PlanePlan {
    u8 family = kNone;
    u8 listed = 0;
    u8 list[kListed] = {};
};

struct Plan {
    Change change = Change::none;
    PlanePlan plane[8];
};

std::size_t block_elements(unsigned width) { return std::min(kBlock, kBlockBytes / width); }

// The classes of a plane, and its model but for frequencies.
void prepare(const PlanePlan& plan, Ranges& ranges, Model& model) {
    std::memset(ranges.of, kEscape, sizeof ranges.of);
    std::memset(ranges.first, 0, sizeof ranges.first);
    model.contexts = 1;
    model.bits[kEscape] = 8;
    if (plan.family == kLogs) {
        for (unsigned value = 0; value < 256; ++value) ranges.of[value] = class_of(value);
        for (unsigned kind = 0; kind < kEscape; ++kind) {
            ranges.first[kind] = kFirst[kind];
            model.bits[kind] = kBits[kind] > 0 ? kBits[kind] - 1 : 0;
        }
        return;
    }
    const unsigned shift = plan.family - kValues;
    for (unsigned kind = 0; kind < plan.listed; ++kind) {
        ranges.first[kind] = plan.list[kind];
        model.bits[kind] = static_cast<u8>(shift);
        for (unsigned i = 0; i < 1u << shift; ++i) ranges.of[plan.list[kind] + i] = static_cast<u8>(kind);
    }
}

// What a plane with these counts of values takes in the classes of `plan`, in bits * 2^16, without headers.
u64 cost_of(const PlanePlan& plan, const u32* values) {
    Ranges ranges;
    Model model;
    prepare(plan, ranges, model);
    u32 counts[kClasses] = {};
    u64 total = 0, cost = 0;
    for (unsigned value = 0; value < 256; ++value) {
        counts[ranges.of[value]] += values[value];
        total += values[value];
    }
    cost = n_log_n(total);
    for (unsigned kind = 0; kind < kClasses; ++kind) cost -= std::min(cost, n_log_n(counts[kind]));
    for (unsigned kind = 0; kind < kClasses; ++kind) cost += u64{counts[kind]} * model.bits[kind] << 16;
    return cost;
}

// The cheapest plan for a plane with these counts, and its cost.
PlanePlan choose_plane(const u32* values, u64& cost) {
    u64 total = 0;
    for (unsigned value = 0; value < 256; ++value) total += values[value];
    PlanePlan best;
    cost = total * 8 << 16;
    const u64 limit = cost - cost / 64;  // below this, or it is not worth the time
    const auto offer = [&](const PlanePlan& plan) {
        const u64 taken = cost_of(plan, values);
        if (taken < limit && taken < cost) {
            best = plan;
            cost = taken;
        }
    };
    for (u8 family = kValues; family <= kGroups16; ++family) {
        const unsigned shift = family - kValues;
        u32 sums[256] = {};
        for (unsigned value = 0; value < 256; ++value) sums[value >> shift << shift] += values[value];
        PlanePlan plan;
        plan.family = family;
        for (; plan.listed < kListed; ++plan.listed) {
            unsigned most = 0;
            for (unsigned value = 1; value < 256; ++value) {
                if (sums[value] > sums[most]) most = value;
            }
            if (sums[most] == 0) break;
            plan.list[plan.listed] = static_cast<u8>(most);
            sums[most] = 0;
        }
        offer(plan);
    }
    PlanePlan logs;
    logs.family = kLogs;
    offer(logs);
    return best;
}

Plan choose(PlanesKind kind, const u8* x, const u8* base, std::size_t n) {
    const std::size_t groups = (n + kLanes - 1) / kLanes, samples = std::min(groups, kSamples);
    Plan best;
    u64 least = ~u64{0};
    for (const Change change : {kind.floats ? Change::turned : Change::none, Change::distance, Change::xored}) {
        if (base == nullptr && (change == Change::distance || change == Change::xored)) continue;
        u32 values[8][256] = {};
        for (std::size_t s = 0; s < samples; ++s) {
            const std::size_t start = s * groups / samples * kLanes, size = std::min(kLanes, n - start);
            u8 bytes[8 * kLanes];
            planes::split(kind.width, kind.floats, change, x + start * kind.width,
                          base == nullptr ? nullptr : base + start * kind.width, size, bytes, kLanes);
            for (unsigned plane = 0; plane < kind.width; ++plane) {
                for (std::size_t i = 0; i < size; ++i) ++values[plane][bytes[plane * kLanes + i]];
            }
        }
        Plan plan;
        plan.change = change;
        u64 all = 0;
        for (unsigned plane = 0; plane < kind.width; ++plane) {
            u64 cost;
            plan.plane[plane] = choose_plane(values[plane], cost);
            all += cost;
        }
        if (all < least) {
            least = all;
            best = plan;
        }
    }
    return best;
}

u8* write_plan(const Plan& plan, unsigned width, u8* out) {
    *out++ = static_cast<u8>(plan.change);
    for (unsigned plane = 0; plane < width; ++plane) {
        const PlanePlan& one = plan.plane[plane];
        *out++ = one.family;
        if (one.family < kValues || one.family > kGroups16) continue;
        *out++ = one.listed;
        out = std::copy(one.list, one.list + one.listed, out);
    }
    return out;
}

const u8* read_plan(Plan& plan, unsigned width, bool has_base, const u8* in, const u8* end) {
    if (in == end || *in > 3 || (!has_base && *in > 1)) return nullptr;
    plan.change = static_cast<Change>(*in++);
    for (unsigned plane = 0; plane < width; ++plane) {
        PlanePlan& one = plan.plane[plane];
        if (in == end || *in > kLogs) return nullptr;
        one.family = *in++;
        if (one.family < kValues || one.family > kGroups16) continue;
        if (in == end || *in > kListed || end - in < 1 + *in) return nullptr;
        one.listed = *in++;
        std::copy(in, in + one.listed, one.list);
        in += one.listed;
        for (unsigned i = 0; i < one.listed; ++i) {
            if (one.list[i] % (1u << (one.family - kValues)) != 0) return nullptr;
        }
    }
    return in;
}

u8* encode_plane(const Kernels& kernels, const PlanePlan& plan, const u8* bytes, std::size_t n, u8* out) {
    if (std::memcmp(bytes, bytes + 1, n - 1) == 0) {
        *out++ = kSame;
        *out++ = bytes[0];
        return out;
    }
    if (plan.family != kNone) {
        Scratch& scratch = Scratch::of_thread();
        Ranges ranges;
        Model model;
        prepare(plan, ranges, model);
        u32 counts[kCells];
        kernels.byte_classify(bytes, n, ranges, scratch.index, scratch.raw, counts);
        set_frequencies(model, counts);
        if (cost_bits(model, counts) / 8 + kHeader + kStateBytes < n - n / 128) {
            std::size_t symbols = 0, raws = 0;
            u8 states[kStateBytes], tables[2 + kClasses];
            const std::size_t padded = (n + kRound - 1) / kRound * kRound;
            kernels.encode(scratch.index, scratch.raw, padded, model, scratch.symbols, scratch.raws, states, symbols, raws);
            const auto table_bytes = static_cast<std::size_t>(write_frequencies(model, tables) - tables);
            if (kHeader + table_bytes + symbols + raws + kStateBytes < 1 + n) {
                *out = kCoded;
                put_u32(out + 1, symbols);
                put_u32(out + 5, raws);
                out = std::copy(tables, tables + table_bytes, out + kHeader);
                std::memcpy(out, scratch.symbols, symbols);
                out += symbols;
                std::memcpy(out, scratch.raws, raws);
                out += raws;
                return std::copy(states, states + kStateBytes, out);
            }
        }
    }
    *out++ = kRaw;
    std::memcpy(out, bytes, n);
    return out + n;
}

// Where the next plane begins, or null; `plane` becomes the address of the bytes, which are in `room` unless they were stored.
const u8* decode_plane(const Kernels& kernels, const PlanePlan& plan, const u8* in, const u8* end, std::size_t n, u8* room,
                       const u8*& plane) {
    if (in == end) return nullptr;
    plane = room;
    switch (*in++) {
        case kSame:
            if (in == end) return nullptr;
            std::memset(room, *in, n);
            return in + 1;
        case kRaw:
            if (static_cast<std::size_t>(end - in) < n) return nullptr;
            plane = in;
            return in + n;
        case kCoded: break;
        default: return nullptr;
    }
    if (plan.family == kNone || static_cast<std::size_t>(end - in) < kHeader - 1) return nullptr;
    const std::size_t symbols = get_u32(in), raws = get_u32(in + 4);
    Ranges ranges;
    Model model;
    prepare(plan, ranges, model);
    in = read_frequencies(model, in + kHeader - 1, end);
    if (in == nullptr || symbols > kBlock || raws > kBlock) return nullptr;
    if (static_cast<std::size_t>(end - in) < symbols + raws + kStateBytes) return nullptr;
    const u8* states = in + symbols + raws;
    const Streams parts{in, in + symbols, states, states, symbols, raws, 0};
    return kernels.byte_decode(model, ranges, parts, n, room) ? states + kStateBytes : nullptr;
}

}  // namespace

std::size_t planes_room(PlanesKind kind, std::size_t n) {
    const std::size_t blocks = (n + block_elements(kind.width) - 1) / block_elements(kind.width);
    return 1 + kind.width * (2 + kListed) + n * kind.width + 2 * kind.width * blocks;
}

std::size_t planes_encode(PlanesKind kind, const u8* x, const u8* base, std::size_t n, u8* out) {
    const Kernels& kernels = rans::kernels(simd());
    const Plan plan = choose(kind, x, base, n);
    u8 *at = write_plan(plan, kind.width, out), *bytes = Scratch::of_thread().planes;
    const std::size_t most = block_elements(kind.width);
    for (std::size_t start = 0; start < n; start += most) {
        const std::size_t size = std::min(most, n - start);
        planes::split(kind.width, kind.floats, plan.change, x + start * kind.width,
                      base == nullptr ? nullptr : base + start * kind.width, size, bytes, size);
        for (unsigned plane = 0; plane < kind.width; ++plane) {
            at = encode_plane(kernels, plan.plane[plane], bytes + plane * size, size, at);
        }
    }
    return static_cast<std::size_t>(at - out);
}

bool planes_decode(PlanesKind kind, const u8* in, std::size_t nbytes, const u8* base, std::size_t n, u8* out) {
    const Kernels& kernels = rans::kernels(simd());
    const u8* end = in + nbytes;
    Plan plan;
    in = read_plan(plan, kind.width, base != nullptr, in, end);
    if (in == nullptr) return false;
    u8* bytes = Scratch::of_thread().planes;
    const std::size_t most = block_elements(kind.width);
    for (std::size_t start = 0; start < n; start += most) {
        const std::size_t size = std::min(most, n - start);
        const u8* planes[8];
        for (unsigned plane = 0; plane < kind.width; ++plane) {
            in = decode_plane(kernels, plan.plane[plane], in, end, size, bytes + plane * size, planes[plane]);
            if (in == nullptr) return false;
        }
        planes::join(kind.width, kind.floats, plan.change, planes, base == nullptr ? nullptr : base + start * kind.width,
                     size, out + start * kind.width);
    }
    return in == end;
}

}  // namespace perdure
