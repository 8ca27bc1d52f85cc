// Receive bytes from a socket into their final memory, digesting each piece while it is in the cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure {

inline constexpr int kLate = -2;    // the time is over
inline constexpr int kSilent = -3;  // nothing came for too long

// Receive `nbytes` bytes of the connected stream socket `fd`, which waits in `recv`, to `into`, and write the XXH3-128
// of each tile of what then lies there to `out`, as `digest_tiles` does. `tile_bytes` is at least 1.
//
// A single wait is bounded by the socket's SO_RCVTIMEO, all of them together by `within_s` seconds: bytes that only
// trickle do not extend it. After `most_silent` single waits in a row in which not one byte came the peer counts as
// silent; 0 is any number of them. They are counted, not timed: this process may have been stopped meanwhile.
// Interrupted calls go on.
//
// Returns 0, an errno, kLate, kSilent, or kCut (file.h) if the peer ends the stream before the last byte; then `into`
// and `out` may hold anything.
int recv_tiles(int fd, std::uint8_t* into, std::uint64_t nbytes, std::uint64_t tile_bytes, std::uint8_t* out,
               double within_s, unsigned most_silent);

}  // namespace perdure
