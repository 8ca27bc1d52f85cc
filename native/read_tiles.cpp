#include "read_tiles.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "digest_tiles.h"
#include "file.h"
#include "pages.h"
#include "stream_copy.h"
#include "xxh3.h"

namespace perdure {

namespace {

constexpr std::size_t kWarmBytes = std::size_t{256} << 10;  // a read and its digest share the second-level cache
constexpr std::size_t kColdBytes = std::size_t{4} << 20;
constexpr std::size_t kCopyBytes = std::size_t{64} << 10;
constexpr std::size_t kBounceBytes = kColdBytes + 2 * kPageBytes;  // a piece that begins and ends within pages
constexpr std::size_t kSmallBytes = std::size_t{256} << 10;  // less than this is left to the cache and its read-ahead

// One tile whose bytes arrive from front to back, and its digest if that is wanted.
class Tile {
public:
    Tile(std::uint8_t* at, std::size_t nbytes, bool digested)
        : at_(at), nbytes_(nbytes), digested_(digested && nbytes > kShortBytes) {}

    std::uint8_t* at() const { return at_; }
    std::size_t nbytes() const { return nbytes_; }
    std::size_t done() const { return done_; }
    std::size_t left() const { return nbytes_ - done_; }

    // `n` more bytes are in their place.
    void arrived(std::size_t n) {
        done_ += n;
        if (!digested_) return;
        const std::size_t blocks = std::min(done_ / kBlockBytes, Stream::whole_blocks(nbytes_));
        stream_.absorb(at_ + absorbed_ * kBlockBytes, blocks - absorbed_);
        absorbed_ = blocks;
    }

    // `n` more bytes lie at `from`: copy and digest them in one pass.
    void copy(const std::uint8_t* from, std::size_t n) {
        if (digested_ && done_ == absorbed_ * kBlockBytes && reinterpret_cast<std::uintptr_t>(at_ + done_) % 64 == 0) {
            const std::size_t blocks = std::min(n / kBlockBytes, Stream::whole_blocks(nbytes_) - absorbed_);
            stream_.absorb_copy(from, at_ + done_, blocks);
            store_fence();
            absorbed_ += blocks;
            done_ += blocks * kBlockBytes;
            from += blocks * kBlockBytes;
            n -= blocks * kBlockBytes;
        }
        while (n > 0) {
            const std::size_t size = std::min(n, kCopyBytes);
            std::memcpy(at_ + done_, from, size);
            arrived(size);
            from += size;
            n -= size;
        }
    }

    // All bytes are there.
    void finish(std::uint8_t* out) {
        if (!digested_) return xxh3_128(at_, nbytes_, out);
        stream_.finish(at_, nbytes_, out);
    }

private:
    std::uint8_t* const at_;
    const std::size_t nbytes_;
    const bool digested_;
    Stream stream_;
    std::size_t done_ = 0;
    std::size_t absorbed_ = 0;  // blocks
};

class Reading {
public:
    Reading(int fd, int direct_fd, std::uint64_t offset, std::uint64_t nbytes, std::uint8_t* into,
            std::uint64_t tile_bytes, std::uint8_t* out, const ReadPlan& plan)
        : fd_(fd), direct_fd_(direct_fd), offset_(offset), nbytes_(nbytes), into_(into), tile_bytes_(tile_bytes),
          out_(out), plan_(plan), tiles_(n_tiles(nbytes, tile_bytes)) {}

    int run() {
        have_threads(static_cast<unsigned>(std::min<std::uint64_t>(plan_.threads, tiles_)));
        work();
        // The list may grow while it is walked: whoever meets the first cold tile calls for help.
        for (std::size_t i = 0;; ++i) {
            std::thread next;
            {
                const std::lock_guard held(lock_);
                if (i == threads_.size()) break;
                next = std::move(threads_[i]);
            }
            next.join();
        }
        return error_.load();
    }

private:
    // Have `wanted` threads altogether, the calling one among them, if the system gives them.
    void have_threads(unsigned wanted) {
        const std::lock_guard held(lock_);
        try {
            while (threads_.size() + 1 < wanted) threads_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {  // fewer threads are slower, not wrong
        }
    }

    void work() {
        Pages bounce;
        for (std::uint64_t tile; error_.load(std::memory_order_relaxed) == 0 && (tile = next_.fetch_add(1)) < tiles_;) {
            const int error = read_tile(tile, bounce);
            int none = 0;
            if (error != 0) error_.compare_exchange_strong(none, error);
        }
    }

    int read_tile(std::uint64_t number, Pages& bounce) {
        const std::uint64_t start = number * tile_bytes_;
        const std::uint64_t from = offset_ + start;
        Tile tile(into_ + start, static_cast<std::size_t>(std::min(tile_bytes_, nbytes_ - start)), out_ != nullptr);
        const Cached cached = is_cached(fd_, from, tile.nbytes());
        if (cached != Cached::yes) {
            const auto helpers = static_cast<unsigned>(std::min<std::uint64_t>(plan_.depth, tiles_ - number));
            if (!helped_.exchange(true)) have_threads(helpers);
            if (cached == Cached::no && direct_fd_ >= 0 && tile.nbytes() >= kSmallBytes) {
                const int error = read_direct(tile, from, bounce);
                if (error != 0 && error != EINVAL) return error;  // EINVAL: not this file, or not to this memory
            }
        }
        const std::size_t piece = cached == Cached::yes ? kWarmBytes : kColdBytes;
        while (tile.left() > 0) {
            const std::size_t n = std::min(piece, tile.left());
            const int error = read_all(fd_, tile.at() + tile.done(), n, from + tile.done());
            if (error != 0) return error;
            tile.arrived(n);
        }
        if (out_) tile.finish(out_ + number * kDigestBytes);
        return 0;
    }

    // Read the tile past the page cache, as far as it goes. Always by the buffer, also where memory and file lie alike:
    // when a process forks, direct input into memory that the child inherits may end in the child's copy of a page, and
    // with the digest taken on the way the copy costs next to nothing.
    int read_direct(Tile& tile, std::uint64_t from, Pages& bounce) {
        if (!bounce) bounce = make_pages(kBounceBytes);
        if (!bounce) return EINVAL;  // no memory: the page cache has its own
        while (tile.left() > 0) {
            const std::uint64_t here = from + tile.done();
            const std::size_t skip = here % kPageBytes;
            const std::size_t want = std::min(tile.left(), kColdBytes);
            const std::size_t whole = (skip + want + kPageBytes - 1) / kPageBytes * kPageBytes;
            const ssize_t got = pread_once(bounce.get(), whole, here - skip);
            if (got < 0) return static_cast<int>(-got);
            if (static_cast<std::size_t>(got) <= skip) return kCut;
            tile.copy(bounce.get() + skip, std::min(want, static_cast<std::size_t>(got) - skip));
        }
        return 0;
    }

    ssize_t pread_once(std::uint8_t* at, std::size_t nbytes, std::uint64_t from) const {
        for (;;) {
            const ssize_t got = ::pread(direct_fd_, at, nbytes, static_cast<off_t>(from));
            if (got >= 0) return got;
            if (errno != EINTR) return -errno;
        }
    }

    const int fd_, direct_fd_;
    const std::uint64_t offset_, nbytes_;
    std::uint8_t* const into_;
    const std::uint64_t tile_bytes_;
    std::uint8_t* const out_;
    const ReadPlan plan_;
    const std::uint64_t tiles_;
    std::atomic<std::uint64_t> next_{0};
    std::atomic<int> error_{0};
    std::atomic<bool> helped_{false};
    std::mutex lock_;
    std::vector<std::thread> threads_;
};

}  // namespace

int read_tiles(int fd, int direct_fd, std::uint64_t offset, std::uint64_t nbytes, std::uint8_t* into,
               std::uint64_t tile_bytes, std::uint8_t* out, const ReadPlan& plan) {
    return Reading(fd, direct_fd, offset, nbytes, into, tile_bytes, out, plan).run();
}

}  // namespace perdure
