// Blocks of one file on their way to the disk, several at once: three ways behind one face, for `write_stream.h`.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace perdure {

struct Block {
    const std::uint8_t* data;  // stays as it is until the block is written
    std::size_t nbytes;        // less than 4 GiB
    std::uint64_t offset;
    int fixed = -1;            // which of the buffers of `pin` it lies in
    bool* pending = nullptr;   // set by `submit`, cleared when the block is done with; read only after `wait`
};

// Used by one thread. After the first failure nothing more is written, and `drain` tells it.
class BlockWriter {
public:
    virtual ~BlockWriter() = default;  // waits for what is in flight

    // Keep these buffers in memory, where it helps. Blocks that lie in them say so in `fixed` if the answer is true.
    virtual bool pin(const iovec*, unsigned) { return false; }

    // Begin to write a block; waits while as many as may be are in flight.
    virtual void submit(Block block) = 0;

    // Wait until `*pending` is false.
    virtual void wait(const bool* pending) = 0;

    // The errno of the first failure so far, or 0.
    virtual int error() = 0;

    // Wait for all blocks; 0, or the errno of the first failure.
    virtual int drain() = 0;
};

// Through io_uring, `depth` blocks at once; null and `*error` where the kernel refuses.
std::unique_ptr<BlockWriter> make_ring_writer(int fd, unsigned depth, int* error);

// By `depth` threads (at least 1), each in a call of its own. Null and `*error` = EAGAIN if the system gives none.
std::unique_ptr<BlockWriter> make_thread_writer(int fd, unsigned depth, int* error);

// By the calling thread, through the page cache, which is told to write early so that fsync finds little left to do.
std::unique_ptr<BlockWriter> make_plain_writer(int fd);

}  // namespace perdure
