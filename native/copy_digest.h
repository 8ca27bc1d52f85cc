// Copy and digest in one pass over memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure {

// Copy `nbytes` bytes from `src` to `dst` and write the XXH3-128 of each tile of the copy to `out`, as `digest_tiles` does.
//
// Any alignment, no overlap. Each byte of `src` is read once and the digests are of what was stored at `dst`: if somebody
// writes to `src` meanwhile, copy and digests still agree with each other. With `dst` aligned to 64 the store happens
// inside the digest's loop and goes around the cache; otherwise pieces of 64 KiB are copied and then digested while they are
// still in the cache. Small calls (below kStreamCallBytes, copy_many.h) take the second way too and leave the copy in the cache.
void copy_digest(const std::uint8_t* src, std::uint8_t* dst, std::size_t nbytes, std::size_t tile_bytes,
                 std::uint8_t* out);

}  // namespace perdure
