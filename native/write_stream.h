// One aggregated, aligned stream of bytes into a new file: what arXiv 2512.24511 finds that checkpoints need.
//
// Large pieces whose memory lies as the file wants it are written from where they are, in blocks, several at once. All
// else is gathered in aligned blocks of the stream's own first. Direct writes end in a padded page; `finish` then cuts
// the file to its true size. Nothing is durable before the caller's fsync.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "block_writer.h"
#include "pages.h"

namespace perdure {

enum class Engine { plain, threads, uring };

struct WritePlan {
    Engine engine;
    bool direct;              // pass the page cache by; where the file system cannot, it is used after all
    std::size_t block_bytes;  // a multiple of kPageBytes, below 4 GiB
    unsigned depth;           // blocks in flight at once, at least 1; `plain` has one
};

class WriteStream {
public:
    // A stream from the start of the empty file `fd`, which is the caller's own description and outlives the stream.
    // `*error` is 0, or why the engine cannot be had (then nothing was done and the stream is of no use).
    WriteStream(int fd, const WritePlan& plan, int* error);
    ~WriteStream();  // waits for what is in flight, so that the memory of `append` may go
    WriteStream(const WriteStream&) = delete;
    WriteStream& operator=(const WriteStream&) = delete;

    // The next `nbytes` bytes will come. Takes their room on the disk; ENOSPC, EDQUOT or EFBIG if it is not there.
    int expect(std::uint64_t nbytes);

    // Take the next bytes, which stay as they are until `settle`. Returns 0, or the errno of any write so far.
    int append(const std::uint8_t* data, std::size_t nbytes);

    // Wait until the memory of every `append` may be used again.
    int settle();

    // Write what is left and give the file its size. The stream takes nothing more.
    int finish();

    std::uint64_t nbytes() const { return offset_ + fill_; }
    bool direct() const { return direct_; }

private:
    void flush();
    void submit(const std::uint8_t* data, std::size_t nbytes, int fixed, bool* pending);

    const int fd_;
    const std::size_t block_bytes_;
    const unsigned depth_;
    bool direct_ = false;
    bool reserves_ = false;
    bool pinned_ = false;
    bool pin_tried_ = false;
    bool in_place_ = false;           // memory of callers is in flight
    std::uint64_t offset_ = 0;        // of the next block
    std::uint64_t reserved_ = 0;      // how long the file has been made
    std::size_t fill_ = 0;            // bytes in the stage that is being filled
    std::size_t stage_ = 0;           // which one that is
    Pages pages_;                     // all stages, made when the first is needed
    std::size_t n_stages_ = 0;
    std::unique_ptr<bool[]> pending_;  // for each stage: its block is in flight
    std::unique_ptr<BlockWriter> writer_;  // last: it ends before the memory that it writes from
};

}  // namespace perdure
