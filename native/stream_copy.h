// Copy one large block past the cache.
//
// An ordinary copy reads three bytes of memory traffic for every byte: source in, destination in (to own the line),
// destination out. Stores that go around the cache leave out the middle one and do not push out what the training step
// will want next. Four pages are copied side by side, since memory delivers several streams faster than one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure {

// Copy `nbytes` bytes; any alignment, no overlap. Ends with a store fence, so another thread that learns of the copy
// through any ordinary synchronisation sees all of it. Where there are no such stores this is memcpy.
void stream_copy(std::uint8_t* dst, const std::uint8_t* src, std::size_t nbytes);

// Make the stores of `Stream::absorb_copy` visible before any later store.
void store_fence();

}  // namespace perdure
