#include <nanobind/stl/optional.h>

#include <optional>

#include "../cluster.h"
#include "../mask.h"
#include "../planes.h"
#include "../ulp.h"
#include "checks.h"

namespace perdure::bind {

namespace {

using Out = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MaybeDigests = std::optional<Digests>;  // uint8[2, 16]: of the tile and of its base

unsigned checked_width(std::int64_t width) {
    if (width != 1 && width != 2 && width != 4 && width != 8) throw nb::value_error("elements have 1, 2, 4 or 8 bytes");
    return static_cast<unsigned>(width);
}

UlpKind checked_kind(std::int64_t kind) {
    if (kind < 0 || kind > 2) throw nb::value_error("there is no such kind of float");
    return static_cast<UlpKind>(kind);
}

// How many elements of `width` bytes a tile has.
std::size_t checked_elements(std::size_t nbytes, unsigned width) {
    if (nbytes == 0 || nbytes % width != 0) throw nb::value_error("a tile is a whole number of elements, at least one");
    return nbytes / width;
}

void check_same(std::size_t nbytes, std::size_t base_nbytes) {
    if (nbytes != base_nbytes) throw nb::value_error("the base has other bytes than the tile");
}

void check_room(std::size_t room, const Out& out) {
    if (out.shape(0) < room) throw nb::value_error("out is too small: see the function that tells the room");
}

void check_apart(const void* a, std::size_t a_nbytes, const void* b, std::size_t b_nbytes) {
    const auto at = reinterpret_cast<std::uint64_t>(a), other = reinterpret_cast<std::uint64_t>(b);
    if (at < other + b_nbytes && other < at + a_nbytes) throw nb::value_error("out overlaps what is read");
}

// Run `work(digests to take or null)`, and write them if it did not fail.
template <class Work>
auto with_digests(const MaybeDigests& out, const std::uint8_t* tile, const std::uint8_t* base, std::size_t nbytes,
                  const Work& work) {
    if (!out) return work(nullptr);
    PairDigest seen(tile, base, nbytes);
    const auto done = work(&seen);
    if (done) seen.finish(out->data());
    return done;
}

void check_digests(const MaybeDigests& out) {
    if (out && (out->shape(0) != 2 || out->shape(1) != kDigestBytes)) {
        throw nb::value_error("digests must be uint8[2, 16]: of the tile and of its base");
    }
}

std::size_t width_of(UlpKind kind) { return kind == UlpKind::float8 ? 1 : 2; }

// Check, then run `work(x, base or null, n)` without the interpreter's lock.
template <class Work>
auto on_tile(nb::object data, nb::object base, Out& out, std::size_t width, const Work& work) {
    const Bytes bytes(data), below(base.is_none() ? data : base);
    const std::size_t n = checked_elements(bytes.size(), static_cast<unsigned>(width));
    check_same(bytes.size(), below.size());
    check_apart(out.data(), out.shape(0), bytes.data(), bytes.size());
    check_apart(out.data(), out.shape(0), below.data(), below.size());
    const std::uint8_t* under = base.is_none() ? nullptr : below.data();
    return work(bytes.data(), under, n);
}

template <class Work>
bool off_tile(nb::object coded, nb::object base, Out& out, std::size_t width, const Work& work) {
    const Bytes bytes(coded), below(base.is_none() ? coded : base);
    const std::size_t n = checked_elements(out.shape(0), static_cast<unsigned>(width));
    if (!base.is_none()) check_same(out.shape(0), below.size());
    check_apart(out.data(), out.shape(0), bytes.data(), bytes.size());
    check_apart(out.data(), out.shape(0), below.data(), below.size());
    const std::uint8_t* under = base.is_none() ? nullptr : below.data();
    nb::gil_scoped_release released;
    return work(bytes.data(), bytes.size(), under, n);
}

std::size_t ulp_encode_checked(nb::object data, nb::object base, Out out, std::int64_t kind, std::int64_t contexts,
                               std::int64_t most, MaybeDigests digests) {
    const UlpKind known = checked_kind(kind);
    if (contexts < 1 || contexts > 8 || most < 0 || most > 8) throw nb::value_error("contexts must be from 1 to 8");
    if (base.is_none()) throw nb::value_error("there is no distance without a base");
    check_digests(digests);
    return on_tile(data, base, out, width_of(known), [&](auto* x, auto* below, std::size_t n) {
        check_room(ulp_room(known, n), out);
        nb::gil_scoped_release released;
        return with_digests(digests, x, below, n * width_of(known), [&](PairDigest* seen) {
            return ulp_encode(known, x, below, n, static_cast<unsigned>(contexts), static_cast<unsigned>(most), out.data(),
                              seen);
        });
    });
}

bool ulp_decode_checked(nb::object coded, nb::object base, Out out, std::int64_t kind, MaybeDigests digests) {
    const UlpKind known = checked_kind(kind);
    if (base.is_none()) throw nb::value_error("there is no distance without a base");
    check_digests(digests);
    return off_tile(coded, base, out, width_of(known), [&](auto* in, std::size_t nbytes, auto* below, std::size_t n) {
        return with_digests(digests, out.data(), below, out.shape(0), [&](PairDigest* seen) {
            return ulp_decode(known, in, nbytes, below, n, out.data(), seen);
        });
    });
}

std::size_t mask_encode_checked(nb::object data, nb::object base, Out out, std::int64_t width, MaybeDigests digests) {
    const unsigned bytes = checked_width(width);
    if (base.is_none()) throw nb::value_error("there is nothing to compare with without a base");
    check_digests(digests);
    return on_tile(data, base, out, bytes, [&](auto* x, auto* below, std::size_t n) {
        check_room(mask_room(bytes, n), out);
        nb::gil_scoped_release released;
        return with_digests(digests, x, below, n * bytes,
                            [&](PairDigest* seen) { return mask_encode(bytes, x, below, n, out.data(), seen); });
    });
}

bool mask_decode_checked(nb::object coded, nb::object base, Out out, std::int64_t width, MaybeDigests digests) {
    const unsigned bytes = checked_width(width);
    if (base.is_none()) throw nb::value_error("there is nothing to compare with without a base");
    check_digests(digests);
    return off_tile(coded, base, out, bytes, [&](auto* in, std::size_t nbytes, auto* below, std::size_t n) {
        return with_digests(digests, out.data(), below, out.shape(0), [&](PairDigest* seen) {
            return mask_decode(bytes, in, nbytes, below, n, out.data(), seen);
        });
    });
}

std::size_t planes_encode_checked(nb::object data, nb::object base, Out out, std::int64_t width, bool floats) {
    const PlanesKind kind{checked_width(width), floats};
    return on_tile(data, base, out, kind.width, [&](auto* x, auto* below, std::size_t n) {
        check_room(planes_room(kind, n), out);
        nb::gil_scoped_release released;
        return planes_encode(kind, x, below, n, out.data());
    });
}

bool planes_decode_checked(nb::object coded, nb::object base, Out out, std::int64_t width, bool floats) {
    const PlanesKind kind{checked_width(width), floats};
    return off_tile(coded, base, out, kind.width, [&](auto* in, std::size_t nbytes, auto* below, std::size_t n) {
        return planes_decode(kind, in, nbytes, below, n, out.data());
    });
}

std::size_t cluster_encode_checked(nb::object data, Out out, std::int64_t value_bits) {
    if (value_bits < 4 || value_bits > 8) throw nb::value_error("value_bits must be from 4 to 8");
    return on_tile(data, nb::none(), out, 4, [&](auto* x, auto*, std::size_t n) {
        check_room(cluster_room(n), out);
        nb::gil_scoped_release released;
        return cluster_encode(x, n, static_cast<unsigned>(value_bits), out.data());
    });
}

bool cluster_decode_checked(nb::object coded, Out out) {
    return off_tile(coded, nb::none(), out, 4, [&](auto* in, std::size_t nbytes, auto*, std::size_t n) {
        return cluster_decode(in, nbytes, n, out.data());
    });
}

using Sums = nb::ndarray<double, nb::shape<4>, nb::c_contig, nb::device::cpu>;
using Counts = nb::ndarray<std::uint64_t, nb::shape<2>, nb::c_contig, nb::device::cpu>;

void float32_error_checked(nb::object data, nb::object decoded, Sums sums, Counts counts) {
    const Bytes before(data), after(decoded);
    if (before.size() != after.size() || before.size() % 4 != 0) {
        throw nb::value_error("two equally long arrays of float32 are compared");
    }
    nb::gil_scoped_release released;
    float32_error(before.data(), after.data(), before.size() / 4, sums.data(), counts.data());
}

}  // namespace

void add_codec(nb::module_& module) {
    module.def("ulp_room", [](std::int64_t nbytes, std::int64_t kind) {
        const UlpKind known = checked_kind(kind);
        return ulp_room(known, static_cast<std::size_t>(nbytes) / width_of(known));
    }, nb::arg("nbytes"), nb::arg("kind"), "The bytes that out needs.");
    module.def("ulp_encode", &ulp_encode_checked, nb::arg("data"), nb::arg("base"), nb::arg("out").noconvert(),
               nb::arg("kind"), nb::arg("contexts"), nb::arg("most") = 0,
               nb::arg("digests").noconvert() = nb::none(), "Encode a tile; the bytes written. See ulp.h.");
    module.def("ulp_decode", &ulp_decode_checked, nb::arg("coded"), nb::arg("base"), nb::arg("out").noconvert(),
               nb::arg("kind"), nb::arg("digests").noconvert() = nb::none(), "Decode a tile; whether it was one. See ulp.h.");
    module.def("mask_room", [](std::int64_t nbytes, std::int64_t width) {
        const unsigned bytes = checked_width(width);
        return mask_room(bytes, static_cast<std::size_t>(nbytes) / bytes);
    }, nb::arg("nbytes"), nb::arg("width"), "The bytes that out needs.");
    module.def("mask_encode", &mask_encode_checked, nb::arg("data"), nb::arg("base"), nb::arg("out").noconvert(),
               nb::arg("width"), nb::arg("digests").noconvert() = nb::none(), "Encode a tile; the bytes written. See mask.h.");
    module.def("mask_decode", &mask_decode_checked, nb::arg("coded"), nb::arg("base"), nb::arg("out").noconvert(),
               nb::arg("width"), nb::arg("digests").noconvert() = nb::none(), "Decode a tile; whether it was one. See mask.h.");
    module.def("planes_room", [](std::int64_t nbytes, std::int64_t width) {
        const PlanesKind kind{checked_width(width), false};
        return planes_room(kind, static_cast<std::size_t>(nbytes) / kind.width);
    }, nb::arg("nbytes"), nb::arg("width"), "The bytes that out needs.");
    module.def("planes_encode", &planes_encode_checked, nb::arg("data"), nb::arg("base").none(), nb::arg("out").noconvert(),
               nb::arg("width"), nb::arg("floats"), "Encode a tile; the bytes written. See planes.h.");
    module.def("planes_decode", &planes_decode_checked, nb::arg("coded"), nb::arg("base").none(),
               nb::arg("out").noconvert(), nb::arg("width"), nb::arg("floats"),
               "Decode a tile; whether it was one. See planes.h.");
    module.def("cluster_room", [](std::int64_t nbytes) { return cluster_room(static_cast<std::size_t>(nbytes) / 4); },
               nb::arg("nbytes"), "The bytes that out needs.");
    module.def("cluster_encode", &cluster_encode_checked, nb::arg("data"), nb::arg("out").noconvert(), nb::arg("value_bits"),
               "Encode a tile; the bytes written. See cluster.h.");
    module.def("cluster_decode", &cluster_decode_checked, nb::arg("coded"), nb::arg("out").noconvert(),
               "Decode a tile; whether it was one. See cluster.h.");
    module.def("float32_error", &float32_error_checked, nb::arg("data"), nb::arg("decoded"), nb::arg("sums").noconvert(),
               nb::arg("counts").noconvert(), "Write the error of one tile against another. See cluster.h.");
}

}  // namespace perdure::bind
