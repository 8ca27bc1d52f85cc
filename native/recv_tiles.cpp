#include "recv_tiles.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "file.h"
#include "piece_digest.h"

namespace perdure {

namespace {

constexpr std::size_t kPieceBytes = std::size_t{256} << 10;  // what comes and its digest share the second-level cache

using Clock = std::chrono::steady_clock;

// Receive exactly `nbytes` bytes: 0, an errno, kCut, kLate or kSilent.
int recv_all(int fd, std::uint8_t* into, std::size_t nbytes, Clock::time_point end, unsigned most_silent) {
    unsigned silent = 0;
    while (nbytes > 0) {
        const ssize_t got = ::recv(fd, into, nbytes, MSG_WAITALL);
        if (got == 0) return kCut;
        if (got < 0 && errno != EINTR) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) return errno;
            if (++silent == most_silent) return kSilent;
        }
        if (got > 0) {
            silent = 0;
            into += got;
            nbytes -= static_cast<std::size_t>(got);
        }
        if (nbytes > 0 && Clock::now() >= end) return kLate;
    }
    return 0;
}

}  // namespace

int recv_tiles(int fd, std::uint8_t* into, std::uint64_t nbytes, std::uint64_t tile_bytes, std::uint8_t* out,
               double within_s, unsigned most_silent) {
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(within_s));
    for (std::uint64_t start = 0; start < nbytes; start += tile_bytes, out += kDigestBytes) {
        const auto size = static_cast<std::size_t>(std::min(tile_bytes, nbytes - start));
        PieceDigest digest(into + start, size);
        for (std::size_t at = 0; at < size; at += kPieceBytes) {
            const std::size_t piece = std::min(kPieceBytes, size - at);
            const int error = recv_all(fd, into + start + at, piece, end, most_silent);
            if (error != 0) return error;
            digest.reach(at + piece);
        }
        digest.finish(out);
    }
    return 0;
}

}  // namespace perdure
