// The digest of bytes that are read or written piece after piece, taken while each piece is in the cache.
//
// A kernel that gets one of these tells it how far it came; the digest is that of `xxh3_128` over all of the bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "xxh3.h"

namespace perdure {

class PieceDigest {
public:
    PieceDigest(const std::uint8_t* bytes, std::size_t nbytes) : bytes_(bytes), nbytes_(nbytes) {}

    // The first `end` bytes are there.
    void reach(std::size_t end) {
        const std::size_t blocks = std::min(end / kBlockBytes, whole_blocks());
        if (blocks <= blocks_) return;
        stream_.absorb(bytes_ + blocks_ * kBlockBytes, blocks - blocks_);
        blocks_ = blocks;
    }

    // The next `n` bytes are at `from`, and go to `to`, where they belong, around the caches; `to` is aligned to 64. Only after whole
    // blocks, and `store_fence` (stream_copy.h) when all is done.
    void bring(const std::uint8_t* from, std::uint8_t* to, std::size_t n) {
        const std::size_t blocks = std::min(n / kBlockBytes, whole_blocks() - blocks_), done = blocks * kBlockBytes;
        stream_.absorb_copy(from, to, blocks);
        std::memcpy(to + done, from + done, n - done);
        blocks_ += blocks;
    }

    // All bytes are there: write the digest to `out[16]`.
    void finish(std::uint8_t* out) {
        if (nbytes_ <= kShortBytes) return xxh3_128(bytes_, nbytes_, out);
        reach(nbytes_);
        stream_.finish(bytes_, nbytes_, out);
    }

private:
    std::size_t whole_blocks() const { return nbytes_ <= kShortBytes ? 0 : Stream::whole_blocks(nbytes_); }

    Stream stream_;
    const std::uint8_t* bytes_;
    std::size_t nbytes_;
    std::size_t blocks_ = 0;
};

// Those of a tile and of its base, which have the same size.
struct PairDigest {
    PieceDigest tile, base;

    PairDigest(const std::uint8_t* of, const std::uint8_t* below, std::size_t nbytes) : tile(of, nbytes), base(below, nbytes) {}

    void reach(std::size_t end) {
        tile.reach(end);
        base.reach(end);
    }
    // Write both to `out[32]`, the tile's first.
    void finish(std::uint8_t* out) {
        tile.finish(out);
        base.finish(out + kDigestBytes);
    }
};

}  // namespace perdure
