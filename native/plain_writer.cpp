#include "block_writer.h"
#include "file.h"

namespace perdure {

namespace {

class PlainWriter final : public BlockWriter {
public:
    explicit PlainWriter(int fd) : fd_(fd) {}

    void submit(Block block) override {
        if (error_ != 0) return;
        error_ = write_all(fd_, block.data, block.nbytes, block.offset);
        if (error_ == 0) start_writeback(fd_, block.offset, block.nbytes);
    }

    void wait(const bool*) override {}

    int error() override { return error_; }

    int drain() override { return error_; }

private:
    const int fd_;
    int error_ = 0;
};

}  // namespace

std::unique_ptr<BlockWriter> make_plain_writer(int fd) { return std::make_unique<PlainWriter>(fd); }

}  // namespace perdure
