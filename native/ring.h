// The kernel's queue of input and output (io_uring), by its own system calls: one thread submits and one thread waits.
//
// Containers often forbid it and other systems lack it (`ring_absent.cpp`); whoever asks is told the errno.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace perdure {

// 0 if this process may use io_uring, else why not, as an errno: ENOSYS (no such call), EPERM (forbidden).
int ring_refused();

class Ring {
public:
    // A ring that `entries` (a power of two) operations can be in at once; null and `*error` where it is refused.
    static std::unique_ptr<Ring> make(unsigned entries, int* error);
    virtual ~Ring() = default;

    // Pin `n` buffers for `write` with a `fixed` index; false if the kernel would not, then they are written unpinned.
    virtual bool register_buffers(const iovec* buffers, unsigned n) = 0;

    // Begin to write; `fixed` is the index of the registered buffer that `data` lies in, or -1. Returns 0 or an errno,
    // then nothing was begun.
    virtual int write(int fd, const void* data, std::uint32_t nbytes, std::uint64_t offset, int fixed,
                      std::uint64_t tag) = 0;

    struct Done {
        std::uint64_t tag;
        int result;  // bytes, or minus an errno
    };

    // Take one operation that is done, waiting for it if `block`: 1 if there was one, 0 if not, or minus an errno.
    virtual int take(Done* done, bool block) = 0;
};

}  // namespace perdure
