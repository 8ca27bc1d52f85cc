#include "copy_digest.h"

#include <algorithm>
#include <cstring>

#include "copy_many.h"
#include "digest_tiles.h"
#include "stream_copy.h"
#include "xxh3.h"

namespace perdure {

namespace {

constexpr std::size_t kPieceBlocks = (std::size_t{64} << 10) / kBlockBytes;

bool aligned(const std::uint8_t* at) { return reinterpret_cast<std::uintptr_t>(at) % 64 == 0; }

void copy_tile(const std::uint8_t* src, std::uint8_t* dst, std::size_t nbytes, bool fused, std::uint8_t* out) {
    if (nbytes <= kShortBytes) {
        std::memcpy(dst, src, nbytes);
        return xxh3_128(dst, nbytes, out);
    }
    Stream stream;
    const std::size_t blocks = Stream::whole_blocks(nbytes);
    if (fused) {
        stream.absorb_copy(src, dst, blocks);
    } else {
        for (std::size_t b = 0; b < blocks; b += kPieceBlocks) {
            const std::size_t piece = std::min(kPieceBlocks, blocks - b);
            std::memcpy(dst + b * kBlockBytes, src + b * kBlockBytes, piece * kBlockBytes);
            stream.absorb(dst + b * kBlockBytes, piece);
        }
    }
    const std::size_t done = blocks * kBlockBytes;
    std::memcpy(dst + done, src + done, nbytes - done);
    stream.finish(dst, nbytes, out);
}

}  // namespace

void copy_digest(const std::uint8_t* src, std::uint8_t* dst, std::size_t nbytes, std::size_t tile_bytes,
                 std::uint8_t* out) {
    const std::size_t tiles = n_tiles(nbytes, tile_bytes);
    const bool large = nbytes >= kStreamCallBytes;
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        const std::size_t start = tile * tile_bytes;
        const std::size_t size = std::min(tile_bytes, nbytes - start);
        copy_tile(src + start, dst + start, size, large && aligned(dst + start), out + tile * kDigestBytes);
    }
    store_fence();
}

}  // namespace perdure
