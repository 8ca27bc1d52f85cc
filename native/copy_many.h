// Copy many blocks of memory in one call: the snapshot of a model's tensors, without the interpreter in between.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure {

// Below this many bytes in a whole call, or in one block, an ordinary memcpy is at least as fast and leaves the copy in
// the cache, where whoever asked for so little will look for it.
inline constexpr std::size_t kStreamCallBytes = std::size_t{4} << 20;
inline constexpr std::size_t kStreamBlockBytes = std::size_t{64} << 10;

// For each i in [0, n): copy `nbytes[i]` bytes from address `src[i]` to address `dst[i]`.
//
// Any alignment; a size of 0 is allowed with any address. No destination may overlap any source or other destination.
// The bytes, not the blocks, are shared out among `threads` threads (at least 1), so that one large block among small
// ones is no bottleneck; a thread gets at least 1 MiB. Allocates nothing but threads.
void copy_many(const std::uint64_t* src, const std::uint64_t* dst, const std::uint64_t* nbytes, std::size_t n,
               std::size_t threads);

}  // namespace perdure
