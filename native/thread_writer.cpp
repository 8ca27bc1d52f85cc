#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "block_writer.h"
#include "file.h"

namespace perdure {

namespace {

class ThreadWriter final : public BlockWriter {
public:
    ThreadWriter(int fd, unsigned depth) : fd_(fd) {
        try {
            for (unsigned i = 0; i < depth; ++i) threads_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {  // fewer threads are slower, not wrong
        }
    }

    ~ThreadWriter() override {
        {
            const std::lock_guard held(lock_);
            ended_ = true;
        }
        changed_.notify_all();
        for (auto& thread : threads_) thread.join();
    }

    bool has_threads() const { return !threads_.empty(); }

    void submit(Block block) override {
        std::unique_lock held(lock_);
        changed_.wait(held, [this] { return in_flight_ < threads_.size() || error_ != 0; });
        if (error_ != 0) return;
        if (block.pending) *block.pending = true;
        ++in_flight_;
        waiting_.push_back(block);
        held.unlock();
        changed_.notify_all();
    }

    void wait(const bool* pending) override {
        std::unique_lock held(lock_);
        changed_.wait(held, [pending] { return !*pending; });
    }

    int error() override {
        const std::lock_guard held(lock_);
        return error_;
    }

    int drain() override {
        std::unique_lock held(lock_);
        changed_.wait(held, [this] { return in_flight_ == 0; });
        return error_;
    }

private:
    void work() {
        std::unique_lock held(lock_);
        for (;;) {
            changed_.wait(held, [this] { return ended_ || !waiting_.empty(); });
            if (waiting_.empty()) return;
            const Block block = waiting_.front();
            waiting_.pop_front();
            if (error_ == 0) {
                held.unlock();
                const int error = write_all(fd_, block.data, block.nbytes, block.offset);
                if (error == 0) start_writeback(fd_, block.offset, block.nbytes);
                held.lock();
                if (error_ == 0) error_ = error;
            }
            if (block.pending) *block.pending = false;
            --in_flight_;
            changed_.notify_all();
        }
    }

    const int fd_;
    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<Block> waiting_;
    std::size_t in_flight_ = 0;
    int error_ = 0;
    bool ended_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockWriter> make_thread_writer(int fd, unsigned depth, int* error) {
    auto writer = std::make_unique<ThreadWriter>(fd, depth);
    if (writer->has_threads()) return writer;
    *error = EAGAIN;
    return nullptr;
}

}  // namespace perdure
