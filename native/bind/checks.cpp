#include "checks.h"

#include "../digest_tiles.h"
#include "../xxh3.h"

namespace perdure::bind {

std::size_t checked_threads(std::int64_t threads) {
    if (threads < 1 || static_cast<std::uint64_t>(threads) > kMaxThreads) {
        throw nb::value_error("threads must be from 1 to 1024");
    }
    return static_cast<std::size_t>(threads);
}

std::size_t checked_tiles(std::uint64_t nbytes, std::int64_t tile_bytes, const Digests& out) {
    if (tile_bytes < 1) throw nb::value_error("tile_bytes must be positive");
    const auto size = static_cast<std::uint64_t>(tile_bytes);
    if (out.shape(0) != n_tiles(nbytes, size) || out.shape(1) != kDigestBytes) {
        throw nb::value_error("out must be uint8[n_tiles, 16]: one row for each tile");
    }
    return static_cast<std::size_t>(size);
}

void check_block(std::uint64_t src, std::uint64_t dst, std::uint64_t nbytes) {
    if (nbytes == 0) return;
    if (src == 0 || dst == 0) throw nb::value_error("a block of bytes cannot lie at address 0");
    if (src + nbytes < src || dst + nbytes < dst) throw nb::value_error("a block runs past the end of memory");
    if (src < dst + nbytes && dst < src + nbytes) throw nb::value_error("source and destination overlap");
}

Bytes::Bytes(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
}

Bytes::~Bytes() { PyBuffer_Release(&view_); }

}  // namespace perdure::bind
