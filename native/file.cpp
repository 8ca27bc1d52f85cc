#include "file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

namespace perdure {

namespace {

constexpr std::size_t kCallBytes = std::size_t{1} << 30;  // the kernel takes less than 2 GiB a call
constexpr int kAgain = 200;                               // a file that says "try again" for 2 s is broken

// Whether a call that failed with `error` may be made again.
bool once_more(int error, int* again) {
    if (error == EINTR) return true;
    if (error != EAGAIN || ++*again > kAgain) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return true;
}

}  // namespace

int write_all(int fd, const std::uint8_t* data, std::size_t nbytes, std::uint64_t offset) {
    int again = 0;
    bool cached = false;
    for (std::size_t done = 0; done < nbytes;) {
        const std::size_t want = std::min(kCallBytes, nbytes - done);
        const ssize_t got = ::pwrite(fd, data + done, want, static_cast<off_t>(offset + done));
        if (got > 0) {
            done += static_cast<std::size_t>(got);
            // What a short direct write left of a page is written again with it: direct writes are of whole pages.
            if (done < nbytes && page_aligned(data) && page_aligned(offset)) done -= done % kPageBytes;
            if (got < static_cast<ssize_t>(kPageBytes) && done < nbytes && ++again > kAgain) return EIO;
        } else if (got == 0) {
            return EIO;
        } else if (errno == EINVAL && !cached) {
            cached = true;
            if (!set_direct(fd, false)) return EINVAL;
        } else if (const int error = errno; !once_more(error, &again)) {
            return error;
        }
    }
    return 0;
}

int read_all(int fd, std::uint8_t* into, std::size_t nbytes, std::uint64_t offset) {
    int again = 0;
    for (std::size_t done = 0; done < nbytes;) {
        const std::size_t want = std::min(kCallBytes, nbytes - done);
        const ssize_t got = ::pread(fd, into + done, want, static_cast<off_t>(offset + done));
        if (got > 0) {
            done += static_cast<std::size_t>(got);
        } else if (got == 0) {
            return kCut;
        } else if (const int error = errno; !once_more(error, &again)) {
            return error;
        }
    }
    return 0;
}

}  // namespace perdure
