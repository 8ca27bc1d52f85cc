#include "copy_many.h"

#include <algorithm>
#include <cstring>

#include "spread.h"
#include "stream_copy.h"

namespace perdure {

namespace {

constexpr std::uint64_t kThreadBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kCutBytes = 4096;  // shares end at multiples of this, so threads rarely meet in one page

}  // namespace

void copy_many(const std::uint64_t* src, const std::uint64_t* dst, const std::uint64_t* nbytes, std::size_t n,
               std::size_t threads) {
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < n; ++i) total += nbytes[i];
    const std::uint64_t useful = std::max<std::uint64_t>(1, total / kThreadBytes);
    const std::size_t workers = std::min<std::uint64_t>(threads, useful);
    const std::uint64_t share = (total / workers + kCutBytes) / kCutBytes * kCutBytes;
    const bool stream_call = total >= kStreamCallBytes;

    // Worker w copies the bytes [w * share, (w + 1) * share) of all blocks laid end to end.
    spread(workers, [=](std::size_t worker) {
        const std::uint64_t first = worker * share;
        const std::uint64_t last = std::min(first + share, total);
        std::uint64_t start = 0;
        for (std::size_t i = 0; i < n && start < last; start += nbytes[i], ++i) {
            const std::uint64_t from = std::max(first, start);
            const std::uint64_t to = std::min(last, start + nbytes[i]);
            if (from >= to) continue;
            auto* into = reinterpret_cast<std::uint8_t*>(dst[i] + (from - start));
            const auto* out_of = reinterpret_cast<const std::uint8_t*>(src[i] + (from - start));
            if (stream_call && to - from >= kStreamBlockBytes) {
                stream_copy(into, out_of, to - from);
            } else {
                std::memcpy(into, out_of, to - from);
            }
        }
    });
}

}  // namespace perdure
