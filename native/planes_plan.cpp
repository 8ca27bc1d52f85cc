#include "planes_plan.h"

#include <algorithm>
#include <cstring>

#include "rans_model.h"

namespace perdure::planes {

using namespace rans;

namespace {

constexpr std::size_t kSamples = 64;  // groups of 64 elements that are looked at to choose a change and ranges
constexpr u64 kNever = ~u64{0} >> 1;

// Chooses ranges for a plane from counts of its values, so that it takes the fewest bits.
//
// Ranges are nodes of a binary tree over the 256 values: node 1 is all of them, nodes 2i and 2i + 1 are the halves of node i,
// nodes from 256 on are the values. cost[i][k] is what the values of node i take in k ranges, but for what all plans have in
// common; the best plan of a node is one range, or the best plans of its halves. Values that do not occur need no range.
class Chooser {
public:
    // The plan, and its cost in bits * 2^16; no ranges if a plane gains less than 1/256.
    PlanePlan choose(const u32* values, u64& cost) {
        u64 total = 0, entropy = 0, kinds = 0;
        for (unsigned value = 0; value < 256; ++value) {
            total += values[value];
            entropy += n_log_n(values[value]);
            kinds += values[value] != 0;
        }
        PlanePlan plan;
        cost = total * 8 << 16;
        const u64 limit = cost - cost / 256;
        // A sample's entropy is too low by about 0.72 bits a kind.
        entropy = n_log_n(total) - std::min(entropy, n_log_n(total)) + kinds * 47186;
        if (entropy >= limit) return plan;
        for (unsigned node = 511; node >= 1; --node) visit(node, values);
        unsigned best = 1;
        for (unsigned k = 2; k <= most_[1]; ++k) {
            if (cost_[1][k] < cost_[1][best]) best = k;
        }
        const u64 taken = cost_[1][best] + n_log_n(total) - kShift;
        if (taken >= limit) return plan;
        cost = taken;
        write(plan, 1, best);
        return plan;
    }

private:
    static constexpr u64 kShift = u64{1} << 50;  // keeps costs positive

    static unsigned level_of(unsigned node) { return 8u - (31u - static_cast<unsigned>(__builtin_clz(node))); }

    void visit(unsigned node, const u32* values) {
        const unsigned left = 2 * node, right = left + 1;
        count_[node] = node >= 256 ? values[node - 256] : count_[left] + count_[right];
        most_[node] = 0;
        if (count_[node] == 0) return;
        most_[node] = node >= 256 ? 1 : static_cast<u8>(std::min(kMostRanges, unsigned{most_[left]} + most_[right]));
        for (unsigned k = 1; k <= most_[node]; ++k) cost_[node][k] = kNever;
        // As one range; kShift is in every cost once.
        cost_[node][1] = kShift + (u64{count_[node]} * level_of(node) << 16) - n_log_n(count_[node]);
        left_[node][1] = kWhole;
        if (node >= 256) return;
        if (most_[left] == 0 || most_[right] == 0) {
            const unsigned only = most_[left] == 0 ? right : left;
            for (unsigned k = 1; k <= most_[only]; ++k) {
                if (cost_[only][k] >= cost_[node][k]) continue;
                cost_[node][k] = cost_[only][k];
                left_[node][k] = static_cast<u8>(only == left ? k : 0);
            }
            return;
        }
        for (unsigned i = 1; i <= most_[left]; ++i) {
            for (unsigned j = 1; j <= most_[right] && i + j <= kMostRanges; ++j) {
                const u64 both = cost_[left][i] + cost_[right][j] - kShift;
                if (both >= cost_[node][i + j]) continue;
                cost_[node][i + j] = both;
                left_[node][i + j] = static_cast<u8>(i);
            }
        }
    }

    void write(PlanePlan& plan, unsigned node, unsigned k) const {
        if (left_[node][k] == kWhole) {
            const unsigned level = level_of(node);
            plan.first[plan.n] = static_cast<u8>((node << level) - 256);
            plan.bits[plan.n++] = static_cast<u8>(level);
            return;
        }
        const unsigned left = left_[node][k];
        if (left > 0) write(plan, 2 * node, left);
        if (k > left) write(plan, 2 * node + 1, k - left);
    }

    static constexpr u8 kWhole = 0xff;
    u64 cost_[512][kMostRanges + 1];
    u32 count_[512];
    u8 left_[512][kMostRanges + 1], most_[512];
};

}  // namespace

void prepare(const PlanePlan& plan, Ranges& ranges, Model& model) {
    std::memset(ranges.of, kEscape, sizeof ranges.of);
    std::memset(ranges.first, 0, sizeof ranges.first);
    model.contexts = 1;
    for (unsigned i = 0; i < plan.n; ++i) {
        ranges.first[i] = plan.first[i];
        model.bits[i] = plan.bits[i];
        std::memset(ranges.of + plan.first[i], static_cast<int>(i), std::size_t{1} << plan.bits[i]);
    }
}

Plan choose(PlanesKind kind, const u8* x, const u8* base, std::size_t n) {
    const std::size_t groups = (n + kLanes - 1) / kLanes, samples = std::min(groups, kSamples);
    const Splitter& chosen = splitter(simd());
    Chooser chooser;
    Plan best;
    u64 least = ~u64{0};
    for (const Change change : {kind.floats ? Change::turned : Change::none, Change::distance, Change::xored}) {
        if (base == nullptr && (change == Change::distance || change == Change::xored)) continue;
        u32 values[8][256] = {};
        for (std::size_t s = 0; s < samples; ++s) {
            const std::size_t start = s * groups / samples * kLanes, size = std::min(kLanes, n - start);
            u8 bytes[8 * kLanes], *to[8];
            for (unsigned plane = 0; plane < kind.width; ++plane) to[plane] = bytes + plane * kLanes;
            chosen.split(kind.width, kind.floats, change, x + start * kind.width,
                         base == nullptr ? nullptr : base + start * kind.width, size, to);
            for (unsigned plane = 0; plane < kind.width; ++plane) {
                for (std::size_t i = 0; i < size; ++i) ++values[plane][bytes[plane * kLanes + i]];
            }
        }
        Plan plan;
        plan.change = change;
        u64 all = 0;
        for (unsigned plane = 0; plane < kind.width; ++plane) {
            u64 cost;
            plan.plane[plane] = chooser.choose(values[plane], cost);
            all += cost;
        }
        if (all < least) {
            least = all;
            best = plan;
        }
    }
    // Large blocks carry fewer states; small ones follow the data where it changes from tensor to tensor, which shows in
    // mantissas that are not noise.
    const bool follows = kind.width >= 4 && coded_planes(best, kind.width) >= 3;
    best.block_log2 = follows ? kLeastLog2 : kind.width == 8 ? kMostLog2 - 1 : kMostLog2;
    return best;
}

u8* write_plan(const Plan& plan, unsigned width, u8* out) {
    *out++ = static_cast<u8>(plan.change);
    *out++ = static_cast<u8>(plan.block_log2);
    for (unsigned plane = 0; plane < width; ++plane) {
        const PlanePlan& one = plan.plane[plane];
        *out++ = one.n;
        for (unsigned i = 0; i < one.n; ++i) {
            *out++ = one.first[i];
            *out++ = one.bits[i];
        }
    }
    return out;
}

const u8* read_plan(Plan& plan, unsigned width, bool has_base, const u8* in, const u8* end) {
    if (end - in < 2 || in[0] > 3 || (!has_base && in[0] > 1)) return nullptr;
    if (in[1] < kLeastLog2 || in[1] > kMostLog2 || (width == 8 && in[1] == kMostLog2)) return nullptr;
    plan.change = static_cast<Change>(*in++);
    plan.block_log2 = *in++;
    for (unsigned plane = 0; plane < width; ++plane) {
        PlanePlan& one = plan.plane[plane];
        if (in == end || *in > kMostRanges || end - in < 1 + 2 * *in) return nullptr;
        one.n = *in++;
        for (unsigned i = 0; i < one.n; ++i, in += 2) {
            one.first[i] = in[0];
            one.bits[i] = in[1];
            if (in[1] > 8 || in[0] % (1u << in[1]) != 0) return nullptr;
        }
    }
    return in;
}

}  // namespace perdure::planes
