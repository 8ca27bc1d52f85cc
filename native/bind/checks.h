// What every binding checks before a kernel runs; a kernel trusts its arguments.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace perdure::bind {

namespace nb = nanobind;

using Addresses = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Digests = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

inline constexpr std::uint64_t kMaxThreads = 1024;

// `threads` as a count; raise ValueError outside of [1, 1024].
std::size_t checked_threads(std::int64_t threads);

// Raise ValueError unless `tile_bytes` is positive and `out` is uint8[n_tiles, 16].
std::size_t checked_tiles(std::uint64_t nbytes, std::int64_t tile_bytes, const Digests& out);

// Raise ValueError if [src, src + n) or [dst, dst + n) holds address 0 or wraps around, or if the two overlap.
void check_block(std::uint64_t src, std::uint64_t dst, std::uint64_t nbytes);

// A contiguous, readable view of any Python object with the buffer protocol, for as long as this lives.
class Bytes {
public:
    explicit Bytes(nb::handle object);
    ~Bytes();
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;

    const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(view_.buf); }
    std::size_t size() const { return static_cast<std::size_t>(view_.len); }

private:
    Py_buffer view_;
};

void add_codec(nb::module_& module);
void add_copy(nb::module_& module);
void add_digest(nb::module_& module);
void add_io(nb::module_& module);
void add_predict(nb::module_& module);
void add_simd(nb::module_& module);

}  // namespace perdure::bind
