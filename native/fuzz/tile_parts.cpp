#include "tile_parts.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace fuzz {

namespace {

constexpr std::size_t kStates = 256;

// Cuts a tile from its front. What an encoder wrote never ends too soon; the fuzzer finds out if it does (`joined` then differs).
class Cutter {
public:
    explicit Cutter(const std::vector<u8>& tile) : tile_(tile), end_(tile.size()) {}

    bool ended() const { return at_ >= end_; }
    int take(Kind kind, std::size_t n, int size_at = -1, unsigned width = 1) {
        n = std::min(n, tile_.size() - at_);
        const auto from = tile_.begin() + static_cast<std::ptrdiff_t>(at_);
        parts.push_back({kind, {from, from + static_cast<std::ptrdiff_t>(n)}, size_at, width});
        at_ += n;
        return static_cast<int>(parts.size()) - 1;
    }
    unsigned number() { return parts[static_cast<std::size_t>(take(Kind::number, 1))].bytes.at(0); }
    void frequencies() {
        const unsigned present = tile_.at(at_) | static_cast<unsigned>(tile_.at(at_ + 1)) << 8;
        take(Kind::frequencies, 2 + static_cast<std::size_t>(std::popcount(present)));
    }
    // So many bytes at the end are not cut.
    void leave(std::size_t n) { end_ = tile_.size() - std::min(n, tile_.size()); }
    // Sizes, tables of `contexts`, streams, literals of `width` bytes (0: they lie elsewhere), states.
    void coded(unsigned contexts, unsigned width) {
        int at[3];
        std::uint32_t size[3];
        for (int i = 0; i < 3; ++i) {
            at[i] = take(Kind::size, 4);
            std::memcpy(size + i, parts.back().bytes.data(), 4);
        }
        for (unsigned i = 0; i < contexts; ++i) frequencies();
        take(Kind::bytes, size[0], at[0]);
        take(Kind::bytes, size[1], at[1]);
        if (width != 0) take(Kind::bytes, std::size_t{size[2]} * width, at[2], width);
        take(Kind::states, kStates);
    }

    Parts parts;

private:
    const std::vector<u8>& tile_;
    std::size_t at_ = 0, end_;
};

}  // namespace

Parts mask_parts(const std::vector<u8>& tile, std::size_t n) {
    Cutter cut(tile);
    cut.take(Kind::bytes, (n + 7) / 8);
    cut.take(Kind::bytes, tile.size());
    return cut.parts;
}

Parts ulp_parts(const std::vector<u8>& tile, unsigned width, std::size_t n) {
    Cutter cut(tile);
    const unsigned first = cut.number(), contexts = first & 0x7f;
    std::uint32_t footer[2] = {};  // the literals of all blocks: how many, and the size of their tile
    if (first != contexts) {
        std::memcpy(footer, tile.data() + tile.size() - sizeof footer, sizeof footer);
        cut.leave(footer[1] + sizeof footer);
    }
    for (unsigned i = 0; i < contexts; ++i) cut.number();  // the first bin and the thresholds
    for (; !cut.ended(); n -= std::min(n, std::size_t{1} << 17)) {
        switch (cut.number()) {
            case 0: break;
            case 1: cut.take(Kind::bytes, width * std::min(n, std::size_t{1} << 17)); break;
            default: cut.coded(contexts, first == contexts ? 2 : 0);
        }
    }
    if (first == contexts) return cut.parts;
    const auto end = tile.end() - static_cast<std::ptrdiff_t>(sizeof footer);
    const auto added = static_cast<int>(cut.parts.size());
    for (Part& part : planes_parts({end - static_cast<std::ptrdiff_t>(footer[1]), end}, 2, footer[0])) {
        if (part.size_at >= 0) part.size_at += added;
        cut.parts.push_back(part);
    }
    for (int i = 0; i < 2; ++i) cut.parts.push_back({Kind::size, {end + 4 * i, end + 4 * i + 4}});
    return cut.parts;
}

Parts planes_parts(const std::vector<u8>& tile, unsigned width, std::size_t n) {
    Cutter cut(tile);
    cut.number();
    const std::size_t block = std::size_t{1} << cut.number();
    for (unsigned plane = 0; plane < width; ++plane) {
        for (unsigned ranges = cut.number(); ranges > 0; --ranges) {
            cut.number();
            cut.number();
        }
    }
    for (; !cut.ended(); n -= std::min(n, block)) {
        for (unsigned plane = 0; plane < width; ++plane) {
            switch (cut.number()) {
                case 0: cut.number(); break;
                case 1: cut.take(Kind::bytes, std::min(n, block)); break;
                default: cut.coded(1, 1);
            }
        }
    }
    return cut.parts;
}

void alter(Parts& parts, std::mt19937_64& random_bits) {
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random_bits() % n); };
    for (std::size_t times = 1 + below(3); times > 0; --times) {
        Part& part = parts[below(parts.size())];
        std::vector<u8>& bytes = part.bytes;
        if (bytes.empty() && part.kind != Kind::bytes) continue;
        switch (part.kind) {
            case Kind::number: bytes[0] = static_cast<u8>(below(2) == 0 ? below(20) : random_bits()); break;
            case Kind::size: {
                std::uint32_t size;
                std::memcpy(&size, bytes.data(), 4);
                const std::uint32_t sizes[] = {size + 1, size - 1, 0, size / 2, size + 64, 1u << 17, (1u << 17) + 1, ~size};
                std::memcpy(bytes.data(), sizes + below(8), 4);
                break;
            }
            case Kind::frequencies: {  // from one class to another, so that the sum stays; or which ones there are
                const std::size_t from = 2 + below(bytes.size() - 1), to = 2 + below(bytes.size() - 1);
                if (below(8) == 0 || from >= bytes.size() || to >= bytes.size()) {
                    bytes[below(2)] ^= static_cast<u8>(1u << below(8));
                    break;
                }
                const std::size_t by = below(bytes[from] + std::size_t{1});
                bytes[from] = static_cast<u8>(bytes[from] - by);
                bytes[to] = static_cast<u8>(bytes[to] + by);
                break;
            }
            case Kind::states:
                for (std::size_t n = 1 + below(64); n > 0; --n) {
                    bytes[below(bytes.size())] = static_cast<u8>(below(4) == 0 ? random_bits() : 0);
                }
                break;
            case Kind::bytes: {
                if (part.size_at >= 0 && below(2) == 0) {  // longer or shorter, and it says so
                    const std::size_t had = bytes.size() / part.width, n = below(2) == 0 ? below(had + 1) : had + below(300);
                    bytes.resize(n * part.width, static_cast<u8>(random_bits()));
                    const auto size = static_cast<std::uint32_t>(n);
                    std::memcpy(parts[static_cast<std::size_t>(part.size_at)].bytes.data(), &size, 4);
                } else if (!bytes.empty()) {
                    for (std::size_t n = 1 + below(32); n > 0; --n) bytes[below(bytes.size())] = static_cast<u8>(random_bits());
                }
            }
        }
    }
    if (below(8) == 0) {  // one part too many, too few, or in another's place
        const std::size_t a = below(parts.size()), b = below(parts.size());
        switch (below(3)) {
            case 0: parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(a), Part(parts[b])); break;
            case 1: parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(a)); break;
            default: std::swap(parts[a].bytes, parts[b].bytes);
        }
    }
}

std::vector<u8> joined(const Parts& parts) {
    std::vector<u8> all;
    for (const Part& part : parts) all.insert(all.end(), part.bytes.begin(), part.bytes.end());
    return all;
}

}  // namespace fuzz
