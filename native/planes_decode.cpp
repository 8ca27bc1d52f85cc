// Tiles of `planes` to elements: blocks two at a time, in pieces that stay in the nearest cache from their symbols to their
// elements. A coded plane of the one block and that of the other are decoded in one loop, for each alone would wait for its states.
#include <algorithm>
#include <cstring>
#include <optional>

#include "planes_plan.h"
#include "rans_bytes.h"
#include "rans_model.h"

namespace perdure {

using namespace rans;
using namespace planes;

namespace {

constexpr unsigned kBlocks = 2;

struct OpenBlock {
    std::size_t begin, n;                 // elements
    const u8* stored[8];                  // of a plane that is not coded, the bytes of the next piece
    bool moves[8];                        // whether they move on with it
    std::optional<ByteReader> coded[8];
    alignas(64) u8 piece[8][kPiece];

    std::size_t left(std::size_t at) const { return at < n ? std::min(kPiece, n - at) : 0; }
};

// Open plane `p` at `in`; returns where the next one begins, or null if [in, end) holds no such plane.
const u8* open_plane(const PlanePlan& plan, OpenBlock& block, unsigned p, const u8* in, const u8* end) {
    block.coded[p].reset();
    block.stored[p] = block.piece[p];
    block.moves[p] = false;
    if (in == end) return nullptr;
    switch (*in++) {
        case kSame:
            if (in == end) return nullptr;
            std::memset(block.piece[p], *in, kPiece);
            return in + 1;
        case kRaw:
            if (static_cast<std::size_t>(end - in) < block.n) return nullptr;
            block.stored[p] = in;
            block.moves[p] = true;
            return in + block.n;
        case kCoded: break;
        default: return nullptr;
    }
    if (plan.n == 0 || static_cast<std::size_t>(end - in) < kHeader - 1) return nullptr;
    const std::size_t symbols = get_u32(in), raws = get_u32(in + 4), literals = get_u32(in + 8);
    Ranges ranges;
    Model model;
    prepare(plan, ranges, model);
    in = read_frequencies(model, in + kHeader - 1, end);
    if (in == nullptr || symbols > kBlock || raws > kBlock || literals > kBlock) return nullptr;
    if (static_cast<std::size_t>(end - in) < symbols + raws + literals + kStateBytes) return nullptr;
    const u8* states = in + symbols + raws + literals;
    block.coded[p].emplace(model, ranges, Streams{in, in + symbols, in + symbols + raws, states, symbols, raws, literals});
    return states + kStateBytes;
}

// Decode the pieces of plane `p` that begin at element `at` of both blocks.
bool decode_pieces(const Kernels& kernels, OpenBlock* blocks, unsigned p, std::size_t at, const Ahead& ahead) {
    ByteReader* readers[kBlocks];
    u8* out[kBlocks];
    std::size_t n[kBlocks];
    unsigned count = 0;
    for (unsigned i = 0; i < kBlocks; ++i) {
        if (blocks[i].left(at) == 0 || !blocks[i].coded[p]) continue;
        readers[count] = &*blocks[i].coded[p];
        out[count] = blocks[i].piece[p];
        n[count++] = blocks[i].left(at);
    }
    if (count == 2 && n[0] == n[1]) return kernels.byte_decode(readers, 2, n[0], ahead, out);
    for (unsigned i = 0; i < count; ++i) {
        if (!kernels.byte_decode(readers + i, 1, n[i], i == 0 ? ahead : Ahead{}, out + i)) return false;
    }
    return true;
}

}  // namespace

bool planes_decode(PlanesKind kind, const u8* in, std::size_t nbytes, const u8* base, std::size_t n, u8* out) {
    const Kernels& kernels = rans::kernels(simd());
    const Splitter& splitter = planes::splitter(simd());
    const unsigned width = kind.width;
    const u8* end = in + nbytes;
    Plan plan;
    in = read_plan(plan, width, base != nullptr, in, end);
    if (in == nullptr) return false;
    const std::size_t most = std::size_t{1} << plan.block_log2;
    OpenBlock blocks[kBlocks];
    for (std::size_t start = 0; start < n; start += kBlocks * most) {
        for (unsigned i = 0; i < kBlocks; ++i) {
            blocks[i].begin = std::min(n, start + i * most);
            blocks[i].n = std::min(most, n - blocks[i].begin);
            for (unsigned p = 0; p < width && blocks[i].n != 0; ++p) {
                in = open_plane(plan.plane[p], blocks[i], p, in, end);
                if (in == nullptr) return false;
            }
        }
        for (std::size_t at = 0; at < blocks[0].n; at += kPiece) {
            Ahead ahead;
            const std::size_t next = at + kPiece < blocks[0].n ? at + kPiece : kBlocks * most;
            for (const OpenBlock& block : blocks) {
                if (block.left(at) == 0) continue;
                ahead.add(out + (block.begin + next) * width, kRound * width);
                if (base != nullptr) ahead.add(base + (block.begin + next) * width, kRound * width);
                for (unsigned p = 0; p < width; ++p) {
                    if (block.moves[p]) ahead.add(block.stored[p] + kPiece, kRound);
                }
            }
            for (unsigned p = 0; p < width; ++p) {
                if (!decode_pieces(kernels, blocks, p, at, ahead)) return false;
                if (plan.plane[p].n != 0) ahead = {};  // it was asked for
            }
            for (OpenBlock& block : blocks) {
                const std::size_t size = block.left(at), place = (block.begin + at) * width;
                if (size == 0) continue;
                splitter.join(width, kind.floats, plan.change, block.stored, base == nullptr ? nullptr : base + place, size,
                              out + place);
                for (unsigned p = 0; p < width; ++p) block.stored[p] += block.moves[p] ? size : 0;
            }
        }
        for (const OpenBlock& block : blocks) {
            for (unsigned p = 0; p < width && block.n != 0; ++p) {
                if (block.coded[p] && !block.coded[p]->done()) return false;
            }
        }
    }
    return in == end;
}

}  // namespace perdure
