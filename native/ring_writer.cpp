#include <bit>
#include <cerrno>
#include <vector>

#include "block_writer.h"
#include "file.h"
#include "ring.h"

namespace perdure {

namespace {

// Whether a file that answers so wants the same done by a plain call.
bool wants_plain(int error) {
    return error == EAGAIN || error == EINTR || error == EINVAL || error == EOPNOTSUPP;
}

class RingWriter final : public BlockWriter {
public:
    RingWriter(int fd, unsigned depth, std::unique_ptr<Ring> ring) : fd_(fd), ring_(std::move(ring)), slots_(depth) {
        for (unsigned i = 0; i < depth; ++i) free_.push_back(i);
    }

    ~RingWriter() override { static_cast<void>(drain()); }

    bool pin(const iovec* buffers, unsigned n) override { return ring_->register_buffers(buffers, n); }

    void submit(Block block) override {
        while (take(false)) {
        }
        while (free_.empty() && take(true)) {
        }
        if (error_ != 0 || free_.empty()) return;
        if (block.pending) *block.pending = true;
        const unsigned slot = free_.back();
        free_.pop_back();
        slots_[slot] = block;
        const auto nbytes = static_cast<std::uint32_t>(block.nbytes);
        int error;
        // A kernel that is short of memory for the moment says EAGAIN or EBUSY: what is in flight goes first.
        while ((error = ring_->write(fd_, block.data, nbytes, block.offset, block.fixed, slot)) != 0) {
            if ((error != EAGAIN && error != EBUSY) || free_.size() + 1 == slots_.size() || !take(true)) break;
        }
        if (error != 0) end(slot, 0);  // not begun: write it here and now
    }

    void wait(const bool* pending) override {
        while (*pending && take(true)) {
        }
    }

    int error() override { return error_; }

    int drain() override {
        while (free_.size() < slots_.size() && take(true)) {
        }
        return error_;
    }

private:
    // Take what is done; whether there was something. False after waiting only if the ring itself is broken.
    bool take(bool block) {
        Ring::Done done{};
        const int taken = ring_->take(&done, block);
        if (taken < 0) fail(-taken);
        if (taken != 1) return false;
        const auto slot = static_cast<unsigned>(done.tag);
        if (done.result >= 0) {
            end(slot, static_cast<std::size_t>(done.result));
        } else if (wants_plain(-done.result)) {
            end(slot, 0);  // which tells what is wrong, if something is
        } else {
            fail(-done.result);
            end(slot, slots_[slot].nbytes);
        }
        return true;
    }

    // The block in `slot` is written up to `done`; write what is left of it.
    void end(unsigned slot, std::size_t done) {
        const Block& block = slots_[slot];
        if (done < block.nbytes && error_ == 0) {
            done -= done % kPageBytes;
            const int error = write_all(fd_, block.data + done, block.nbytes - done, block.offset + done);
            if (error != 0) fail(error);
        }
        if (block.pending) *block.pending = false;
        free_.push_back(slot);
    }

    void fail(int error) {
        if (error_ == 0) error_ = error;
    }

    const int fd_;
    std::unique_ptr<Ring> ring_;
    std::vector<Block> slots_;
    std::vector<unsigned> free_;
    int error_ = 0;
};

}  // namespace

std::unique_ptr<BlockWriter> make_ring_writer(int fd, unsigned depth, int* error) {
    auto ring = Ring::make(std::bit_ceil(depth), error);
    return ring ? std::make_unique<RingWriter>(fd, depth, std::move(ring)) : nullptr;
}

}  // namespace perdure
