#include "write_stream.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "file.h"

namespace perdure {

namespace {

constexpr std::size_t kStageBytes = std::size_t{16} << 20;     // memory for gathering, all stages together
constexpr std::size_t kInPlaceBytes = std::size_t{256} << 10;  // a smaller piece is gathered: copying it costs less
constexpr std::uint64_t kReserveBytes = std::uint64_t{64} << 20;

bool is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

std::unique_ptr<BlockWriter> make_writer(int fd, const WritePlan& plan, int* error) {
    switch (plan.engine) {
        case Engine::uring: return make_ring_writer(fd, plan.depth, error);
        case Engine::threads: return make_thread_writer(fd, plan.depth, error);
        default: return make_plain_writer(fd);
    }
}

}  // namespace

WriteStream::WriteStream(int fd, const WritePlan& plan, int* error)
    : fd_(fd), block_bytes_(plan.block_bytes), depth_(plan.engine == Engine::plain ? 1 : plan.depth) {
    *error = 0;
    direct_ = plan.direct && set_direct(fd, true);
    reserves_ = direct_;  // in the page cache, blocks need not wait for one another
    writer_ = make_writer(fd, plan, error);
    if (*error != 0 && direct_) static_cast<void>(set_direct(fd, false));
}

WriteStream::~WriteStream() = default;

int WriteStream::expect(std::uint64_t nbytes) {
    const std::uint64_t end = offset_ + fill_ + nbytes;
    if (!reserves_ || end <= reserved_) return 0;
    const int error = reserve(fd_, reserved_, end - reserved_);
    if (error == 0) reserved_ = end;
    if (error != 0 && !is_full(error)) reserves_ = false;
    return is_full(error) ? error : 0;
}

int WriteStream::append(const std::uint8_t* data, std::size_t nbytes) {
    while (nbytes > 0) {
        const bool large = nbytes >= kInPlaceBytes;
        if (large && (!direct_ || (page_aligned(data) && page_aligned(fill_)))) {
            flush();
            const std::size_t size = std::min(block_bytes_, direct_ ? nbytes - nbytes % kPageBytes : nbytes);
            submit(data, size, -1, nullptr);
            in_place_ = true;
            data += size;
            nbytes -= size;
            continue;
        }
        if (!pages_) {
            n_stages_ = std::clamp<std::size_t>(kStageBytes / block_bytes_, 2, std::max(2U, depth_));
            pages_ = make_pages(n_stages_ * block_bytes_);
            if (!pages_) return ENOMEM;
            pending_ = std::make_unique<bool[]>(n_stages_);
        }
        std::size_t size = std::min(nbytes, block_bytes_ - fill_);
        // Where memory and file will lie alike at the next page, only what is before it is gathered.
        if (large && page_aligned(data - fill_)) size = std::min(size, kPageBytes - fill_ % kPageBytes);
        std::memcpy(pages_.get() + stage_ * block_bytes_ + fill_, data, size);
        fill_ += size;
        data += size;
        nbytes -= size;
        if (fill_ == block_bytes_) flush();
    }
    return writer_->error();
}

int WriteStream::settle() {
    if (!in_place_) return 0;
    in_place_ = false;
    return writer_->drain();
}

int WriteStream::finish() {
    const std::uint64_t total = nbytes();
    if (direct_ && fill_ % kPageBytes != 0) {
        const std::size_t pad = kPageBytes - fill_ % kPageBytes;
        std::memset(pages_.get() + stage_ * block_bytes_ + fill_, 0, pad);
        fill_ += pad;
    }
    flush();
    if (const int error = writer_->drain(); error != 0) return error;
    struct stat found{};
    if (::fstat(fd_, &found) != 0) return errno;
    if (static_cast<std::uint64_t>(found.st_size) == total) return 0;
    while (::ftruncate(fd_, static_cast<off_t>(total)) != 0) {
        if (errno != EINTR) return errno;
    }
    return 0;
}

void WriteStream::flush() {
    if (fill_ == 0) return;
    if (fill_ == block_bytes_ && !pin_tried_) {  // a second block is likely, so keeping them all in memory pays
        pin_tried_ = true;
        std::vector<iovec> stages;
        for (std::size_t i = 0; i < n_stages_; ++i) stages.push_back({pages_.get() + i * block_bytes_, block_bytes_});
        pinned_ = writer_->pin(stages.data(), static_cast<unsigned>(stages.size()));
    }
    const std::size_t size = std::exchange(fill_, 0);
    const std::size_t stage = std::exchange(stage_, (stage_ + 1) % n_stages_);
    submit(pages_.get() + stage * block_bytes_, size, pinned_ ? static_cast<int>(stage) : -1, &pending_[stage]);
    writer_->wait(&pending_[stage_]);
}

void WriteStream::submit(const std::uint8_t* data, std::size_t nbytes, int fixed, bool* pending) {
    // Whether there is room for what nobody announced is for the write to tell.
    if (offset_ + nbytes > reserved_ && expect(std::max<std::uint64_t>(nbytes, kReserveBytes)) != 0) reserves_ = false;
    writer_->submit({data, nbytes, offset_, fixed, pending});
    offset_ += nbytes;
}

}  // namespace perdure
