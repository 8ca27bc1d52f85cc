// Read a span of a file into its final memory by several threads, digesting each piece while it is in the cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure {

struct ReadPlan {
    unsigned threads;  // for tiles that the page cache holds, at least 1
    unsigned depth;    // for tiles that must come from the disk: so many are asked for at once; at least 1
};

// Read `nbytes` bytes of `fd` from `offset` on to `into`, and write the XXH3-128 of each tile of what then lies there
// to `out`, as `digest_tiles` does; without digests if `out` is null. `tile_bytes` is at least 1.
//
// `direct_fd` is the same file opened for direct input, or -1. A tile that is not in the page cache is read through
// it, by an aligned buffer of at most 6 MiB a thread. A process may fork meanwhile.
//
// Returns 0, an errno, or kCut (file.h) if the file ends early; then `into` and `out` may hold anything.
int read_tiles(int fd, int direct_fd, std::uint64_t offset, std::uint64_t nbytes, std::uint8_t* into,
               std::uint64_t tile_bytes, std::uint8_t* out, const ReadPlan& plan);

}  // namespace perdure
