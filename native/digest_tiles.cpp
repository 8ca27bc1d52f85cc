#include "digest_tiles.h"

#include <algorithm>
#include <atomic>

#include "spread.h"
#include "xxh3.h"

namespace perdure {

namespace {

constexpr std::size_t kThreadBytes = std::size_t{1} << 20;  // starting a thread costs about as much as digesting this

}  // namespace

void digest_tiles(const std::uint8_t* data, std::size_t nbytes, std::size_t tile_bytes, std::uint8_t* out,
                  std::size_t threads) {
    const std::size_t tiles = n_tiles(nbytes, tile_bytes);
    const std::size_t useful = std::max<std::size_t>(1, std::min(tiles, nbytes / kThreadBytes));
    std::atomic<std::size_t> next{0};
    spread(std::min(threads, useful), [&](std::size_t) {
        for (std::size_t tile; (tile = next.fetch_add(1, std::memory_order_relaxed)) < tiles;) {
            const std::size_t start = tile * tile_bytes;
            xxh3_128(data + start, std::min(tile_bytes, nbytes - start), out + tile * kDigestBytes);
        }
    });
}

}  // namespace perdure
