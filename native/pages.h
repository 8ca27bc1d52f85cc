// Memory for direct input and output: it begins at a huge page and is made of huge pages where the system gives them,
// so that the disk is asked for few large pieces: on a virtual disk that was 1.8 times as fast. Taken page by page on first
// touch. A child process does not inherit it: after a fork during direct input or output, parent and child could differ
// in what they see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace perdure {

struct Unmap {
    std::size_t nbytes = 0;
    void operator()(std::uint8_t* at) const;
};

using Pages = std::unique_ptr<std::uint8_t, Unmap>;

// At least `nbytes` bytes, zero; null if there is no memory.
Pages make_pages(std::size_t nbytes);

}  // namespace perdure
