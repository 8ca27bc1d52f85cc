#include <nanobind/stl/string.h>

#include <memory>
#include <string>

#include "../digest_tiles.h"
#include "../file.h"
#include "../read_tiles.h"
#include "../recv_tiles.h"
#include "../ring.h"
#include "../write_stream.h"
#include "../xxh3.h"
#include "checks.h"

namespace perdure::bind {

namespace {

constexpr std::int64_t kMaxDepth = 1024;
constexpr double kMaxWaitS = 1e6;
constexpr std::int64_t kMaxBlockBytes = std::int64_t{1} << 30;

Engine engine_named(const std::string& name) {
    if (name == "uring") return Engine::uring;
    if (name == "threads") return Engine::threads;
    if (name == "plain") return Engine::plain;
    throw nb::value_error("engine must be uring, threads or plain");
}

unsigned checked_depth(std::int64_t depth) {
    if (depth < 1 || depth > kMaxDepth) throw nb::value_error("depth must be from 1 to 1024");
    return static_cast<unsigned>(depth);
}

[[noreturn]] void raise_os_error(int code) {
    errno = code;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
}

void check(int code) {
    if (code != 0) raise_os_error(code);
}

// `WriteStream` with checks. Every call releases the interpreter's lock.
class CheckedStream {
public:
    CheckedStream(int fd, const std::string& engine, bool direct, std::int64_t block_bytes, std::int64_t depth) {
        if (block_bytes < 1 || block_bytes > kMaxBlockBytes || !page_aligned(static_cast<std::uint64_t>(block_bytes))) {
            throw nb::value_error("block_bytes must be a multiple of 4096, at most 1 GiB");
        }
        const WritePlan plan{engine_named(engine), direct, static_cast<std::size_t>(block_bytes), checked_depth(depth)};
        int error = 0;
        {
            nb::gil_scoped_release released;
            stream_ = std::make_unique<WriteStream>(fd, plan, &error);
        }
        check(error);
    }

    ~CheckedStream() { close(); }

    void expect(std::uint64_t nbytes) {
        WriteStream& stream = open();
        int error;
        {
            nb::gil_scoped_release released;
            error = stream.expect(nbytes);
        }
        check(error);
    }

    void append(nb::object data) {
        WriteStream& stream = open();
        const Bytes bytes(data);
        int error;
        {
            nb::gil_scoped_release released;
            error = stream.append(bytes.data(), bytes.size());
        }
        check(error);
    }

    void settle() {
        WriteStream& stream = open();
        int error;
        {
            nb::gil_scoped_release released;
            error = stream.settle();
        }
        check(error);
    }

    void finish() {
        WriteStream& stream = open();
        int error;
        {
            nb::gil_scoped_release released;
            error = stream.finish();
        }
        check(error);
    }

    void close() {
        nb::gil_scoped_release released;
        stream_.reset();
    }

    bool direct() { return open().direct(); }

private:
    WriteStream& open() {
        if (!stream_) throw nb::value_error("the stream is closed");
        return *stream_;
    }

    std::unique_ptr<WriteStream> stream_;
};

int read_tiles_checked(int fd, int direct_fd, std::uint64_t offset, std::uint64_t nbytes, std::uint64_t into,
                       std::int64_t tile_bytes, nb::object out, std::int64_t threads, std::int64_t depth) {
    if (nbytes != 0 && (into == 0 || into + nbytes < into)) throw nb::value_error("a block of bytes cannot lie there");
    if (offset + nbytes < offset || offset + nbytes > static_cast<std::uint64_t>(INT64_MAX)) {
        throw nb::value_error("no file is that long");
    }
    if (tile_bytes < 1) throw nb::value_error("tile_bytes must be positive");
    std::uint8_t* digests = nullptr;
    Digests rows;
    if (!out.is_none()) {
        rows = nb::cast<Digests>(out, /* convert */ false);
        checked_tiles(nbytes, tile_bytes, rows);
        digests = rows.data();
    }
    const ReadPlan plan{static_cast<unsigned>(checked_threads(threads)), checked_depth(depth)};
    nb::gil_scoped_release released;
    auto* const at = reinterpret_cast<std::uint8_t*>(into);
    return read_tiles(fd, direct_fd, offset, nbytes, at, static_cast<std::uint64_t>(tile_bytes), digests, plan);
}

using Room = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int recv_tiles_checked(int fd, Room into, std::int64_t tile_bytes, Room out, double within_s, unsigned most_silent) {
    if (tile_bytes < 1) throw nb::value_error("tile_bytes must be positive");
    if (!(within_s >= 0 && within_s <= kMaxWaitS)) throw nb::value_error("within_s must be from 0 to a million seconds");
    const auto size = static_cast<std::uint64_t>(tile_bytes);
    if (out.size() != n_tiles(into.size(), size) * kDigestBytes) {
        throw nb::value_error("out must have 16 bytes for each tile");
    }
    nb::gil_scoped_release released;
    return recv_tiles(fd, into.data(), into.size(), size, out.data(), within_s, most_silent);
}

}  // namespace

void add_io(nb::module_& module) {
    module.def("uring_refused", &ring_refused, "0 if this process may use io_uring, else the errno; see ring.h.");
    module.def("read_tiles", &read_tiles_checked, nb::arg("fd"), nb::arg("direct_fd"), nb::arg("offset"),
               nb::arg("nbytes"), nb::arg("into"), nb::arg("tile_bytes"), nb::arg("out").none(), nb::arg("threads"),
               nb::arg("depth"),
               "Read a span and digest its tiles: 0, an errno, or -1 if the file is cut; see read_tiles.h.");
    module.def("recv_tiles", &recv_tiles_checked, nb::arg("fd"), nb::arg("into").noconvert(), nb::arg("tile_bytes"),
               nb::arg("out").noconvert(), nb::arg("within_s"), nb::arg("most_silent") = 0,
               "Receive from a socket and digest tiles: 0, an errno, -1 if the stream ended, -2 if it is late, -3 if the "
               "peer is silent; see recv_tiles.h.");
    nb::class_<CheckedStream>(module, "WriteStream", "A stream of aligned blocks into a new file; see write_stream.h.")
        .def(nb::init<int, const std::string&, bool, std::int64_t, std::int64_t>(), nb::arg("fd"), nb::arg("engine"),
             nb::arg("direct"), nb::arg("block_bytes"), nb::arg("depth"))
        .def("expect", &CheckedStream::expect, nb::arg("nbytes"))
        .def("append", &CheckedStream::append, nb::arg("data"))
        .def("settle", &CheckedStream::settle)
        .def("finish", &CheckedStream::finish)
        .def("close", &CheckedStream::close)
        .def_prop_ro("direct", &CheckedStream::direct);
}

}  // namespace perdure::bind
