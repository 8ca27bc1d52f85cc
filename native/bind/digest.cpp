#include "../digest_tiles.h"

#include "../xxh3.h"
#include "checks.h"

namespace perdure::bind {

namespace {

nb::bytes digest_checked(nb::object data) {
    const Bytes bytes(data);
    std::uint8_t out[kDigestBytes];
    {
        nb::gil_scoped_release released;
        xxh3_128(bytes.data(), bytes.size(), out);
    }
    return nb::bytes(out, sizeof out);
}

void digest_tiles_checked(nb::object data, std::int64_t tile_bytes, Digests out, std::int64_t threads) {
    const Bytes bytes(data);
    const std::size_t tile = checked_tiles(bytes.size(), tile_bytes, out);
    const std::size_t workers = checked_threads(threads);
    nb::gil_scoped_release released;
    digest_tiles(bytes.data(), bytes.size(), tile, out.data(), workers);
}

}  // namespace

void add_digest(nb::module_& module) {
    module.def("digest", &digest_checked, nb::arg("data"), "The XXH3-128 of a contiguous buffer; see xxh3.h.");
    module.def("digest_tiles", &digest_tiles_checked, nb::arg("data"), nb::arg("tile_bytes"),
               nb::arg("out").noconvert(), nb::arg("threads") = 1,
               "Write the XXH3-128 of each tile of a contiguous buffer; see digest_tiles.h.");
}

}  // namespace perdure::bind
