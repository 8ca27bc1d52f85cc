#include "../copy_many.h"

#include "../copy_digest.h"
#include "checks.h"

namespace perdure::bind {

namespace {

void copy_many_checked(Addresses src, Addresses dst, Addresses nbytes, std::int64_t threads) {
    const std::size_t n = src.shape(0);
    if (dst.shape(0) != n || nbytes.shape(0) != n) throw nb::value_error("src, dst and nbytes must have one length");
    const std::size_t workers = checked_threads(threads);
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < n; ++i) {
        check_block(src.data()[i], dst.data()[i], nbytes.data()[i]);
        if (__builtin_add_overflow(total, nbytes.data()[i], &total)) throw nb::value_error("more bytes than memory has");
    }
    nb::gil_scoped_release released;
    copy_many(src.data(), dst.data(), nbytes.data(), n, workers);
}

void copy_digest_checked(std::uint64_t src, std::uint64_t dst, std::uint64_t nbytes, std::int64_t tile_bytes,
                         Digests out) {
    const std::size_t tile = checked_tiles(nbytes, tile_bytes, out);
    check_block(src, dst, nbytes);
    nb::gil_scoped_release released;
    copy_digest(reinterpret_cast<const std::uint8_t*>(src), reinterpret_cast<std::uint8_t*>(dst), nbytes, tile,
                out.data());
}

}  // namespace

void add_copy(nb::module_& module) {
    module.def("copy_many", &copy_many_checked, nb::arg("src").noconvert(), nb::arg("dst").noconvert(),
               nb::arg("nbytes").noconvert(), nb::arg("threads") = 1,
               "Copy nbytes[i] bytes from address src[i] to address dst[i], for every i; see copy_many.h.");
    module.def("copy_digest", &copy_digest_checked, nb::arg("src"), nb::arg("dst"), nb::arg("nbytes"),
               nb::arg("tile_bytes"), nb::arg("out").noconvert(),
               "Copy and write the XXH3-128 of each tile of the copy, in one pass; see copy_digest.h.");
}

}  // namespace perdure::bind
