#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ring.h"

namespace perdure {

namespace {

int setup(unsigned entries, io_uring_params* params) {
    return static_cast<int>(::syscall(__NR_io_uring_setup, entries, params));
}

int enter(int ring, unsigned submit, unsigned wait) {
    const unsigned flags = wait ? IORING_ENTER_GETEVENTS : 0;
    return static_cast<int>(::syscall(__NR_io_uring_enter, ring, submit, wait, flags, nullptr, 0));
}

// A part of the ring that kernel and process share.
class Shared {
public:
    Shared(int fd, std::uint64_t what, std::size_t nbytes)
        : at_(::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(what))),
          nbytes_(nbytes) {}
    ~Shared() {
        if (ok()) ::munmap(at_, nbytes_);
    }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;
    bool ok() const { return at_ != MAP_FAILED; }
    template <class Part>
    Part* part(std::uint32_t offset) const {
        return reinterpret_cast<Part*>(static_cast<char*>(at_) + offset);
    }

private:
    void* at_;
    std::size_t nbytes_;
};

class Descriptor {
public:
    explicit Descriptor(int fd) : fd(fd) {}
    ~Descriptor() { ::close(fd); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    const int fd;
};

class LinuxRing final : public Ring {
public:
    LinuxRing(int fd, const io_uring_params& p)
        : ring_(fd),
          submissions_(fd, IORING_OFF_SQ_RING, p.sq_off.array + p.sq_entries * sizeof(unsigned)),
          completions_(fd, IORING_OFF_CQ_RING, p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe)),
          entries_(fd, IORING_OFF_SQES, p.sq_entries * sizeof(io_uring_sqe)),
          params_(p) {}

    bool ok() const { return submissions_.ok() && completions_.ok() && entries_.ok(); }

    bool register_buffers(const iovec* buffers, unsigned n) override {
        return ::syscall(__NR_io_uring_register, ring_.fd, IORING_REGISTER_BUFFERS, buffers, n) == 0;
    }

    int write(int fd, const void* data, std::uint32_t nbytes, std::uint64_t offset, int fixed,
              std::uint64_t tag) override {
        unsigned* const tail = submissions_.part<unsigned>(params_.sq_off.tail);
        const unsigned mask = *submissions_.part<unsigned>(params_.sq_off.ring_mask);
        const unsigned here = *tail;
        io_uring_sqe& entry = entries_.part<io_uring_sqe>(0)[here & mask];
        std::memset(&entry, 0, sizeof entry);
        entry.opcode = fixed < 0 ? IORING_OP_WRITE : IORING_OP_WRITE_FIXED;
        entry.fd = fd;
        entry.addr = reinterpret_cast<std::uintptr_t>(data);
        entry.len = nbytes;
        entry.off = offset;
        entry.user_data = tag;
        if (fixed >= 0) entry.buf_index = static_cast<std::uint16_t>(fixed);
        submissions_.part<unsigned>(params_.sq_off.array)[here & mask] = here & mask;
        __atomic_store_n(tail, here + 1, __ATOMIC_RELEASE);
        for (;;) {
            const int taken = enter(ring_.fd, 1, 0);
            if (taken == 1) return 0;
            if (taken < 0 && errno == EINTR) continue;
            const int error = taken < 0 ? errno : EAGAIN;
            // The kernel did not take it, and it looks only when it is entered.
            __atomic_store_n(tail, here, __ATOMIC_RELEASE);
            return error;
        }
    }

    int take(Done* done, bool block) override {
        unsigned* const head = completions_.part<unsigned>(params_.cq_off.head);
        const unsigned mask = *completions_.part<unsigned>(params_.cq_off.ring_mask);
        while (*head == __atomic_load_n(completions_.part<unsigned>(params_.cq_off.tail), __ATOMIC_ACQUIRE)) {
            if (!block) return 0;
            if (enter(ring_.fd, 0, 1) < 0 && errno != EINTR) return -errno;
        }
        const io_uring_cqe& found = completions_.part<io_uring_cqe>(params_.cq_off.cqes)[*head & mask];
        *done = {found.user_data, found.res};
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        return 1;
    }

private:
    Descriptor ring_;
    Shared submissions_, completions_, entries_;
    io_uring_params params_;
};

}  // namespace

int ring_refused() {
    int error = 0;
    return Ring::make(1, &error) ? 0 : error;
}

std::unique_ptr<Ring> Ring::make(unsigned entries, int* error) {
    io_uring_params params{};
    const int fd = setup(entries, &params);
    if (fd < 0) {
        *error = errno;
        return nullptr;
    }
    auto ring = std::make_unique<LinuxRing>(fd, params);
    // IORING_OP_WRITE came with this feature (Linux 5.6); older rings are not worth a second way.
    if (ring->ok() && params.features & IORING_FEAT_RW_CUR_POS) return ring;
    *error = ring->ok() ? ENOSYS : ENOMEM;
    return nullptr;
}

}  // namespace perdure
