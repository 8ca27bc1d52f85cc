// The digest of each tile of a tensor's bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure {

// How many tiles `nbytes` bytes make: the last may be shorter than `tile_bytes` (> 0); no bytes make no tile.
constexpr std::uint64_t n_tiles(std::uint64_t nbytes, std::uint64_t tile_bytes) {
    return nbytes / tile_bytes + (nbytes % tile_bytes != 0);
}

// Write the XXH3-128 of tile t of `data` to `out[16 * t]`, for all n_tiles(nbytes, tile_bytes) tiles, canonical byte order.
//
// Tiles are handed to `threads` threads (at least 1) as they become free. Allocates nothing but threads.
void digest_tiles(const std::uint8_t* data, std::size_t nbytes, std::size_t tile_bytes, std::uint8_t* out,
                  std::size_t threads);

}  // namespace perdure
