#include <atomic>
#include <cstring>

#include "stream_copy.h"

namespace perdure {

void stream_copy(std::uint8_t* dst, const std::uint8_t* src, std::size_t nbytes) { std::memcpy(dst, src, nbytes); }

void store_fence() { std::atomic_thread_fence(std::memory_order_release); }

}  // namespace perdure
