#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "file.h"

namespace perdure {

namespace {

constexpr long kCachestat = 451;  // since Linux 6.5; the number is the same on every architecture but alpha

struct CachestatRange {
    std::uint64_t offset, nbytes;
};

struct Cachestat {
    std::uint64_t cached, dirty, writeback, evicted, recently_evicted;  // pages
};

}  // namespace

bool set_direct(int fd, bool on) {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0) return false;
    return ::fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

int reserve(int fd, std::uint64_t offset, std::uint64_t nbytes) {
    while (::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(nbytes)) != 0) {
        if (errno != EINTR) return errno;
    }
    return 0;
}

void start_writeback(int fd, std::uint64_t offset, std::uint64_t nbytes) {
    const auto from = static_cast<off_t>(offset);
    static_cast<void>(::sync_file_range(fd, from, static_cast<off_t>(nbytes), SYNC_FILE_RANGE_WRITE));
}

void ask_for_huge_pages(void* at, std::size_t nbytes) { static_cast<void>(::madvise(at, nbytes, MADV_HUGEPAGE)); }

bool keep_from_children(void* at, std::size_t nbytes) { return ::madvise(at, nbytes, MADV_DONTFORK) == 0; }

Cached is_cached(int fd, std::uint64_t offset, std::uint64_t nbytes) {
    const CachestatRange range{offset, nbytes};
    Cachestat found{};
    if (::syscall(kCachestat, fd, &range, &found, 0) == 0) {
        const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
        return found.cached * page >= nbytes / 2 ? Cached::yes : Cached::no;
    }
    // One byte of the middle, if it can be had at once, stands for all.
    std::uint8_t byte;
    const iovec at{&byte, 1};
    if (::preadv2(fd, &at, 1, static_cast<off_t>(offset + nbytes / 2), RWF_NOWAIT) >= 0) return Cached::yes;
    return errno == EAGAIN ? Cached::no : Cached::unknown;
}

}  // namespace perdure
