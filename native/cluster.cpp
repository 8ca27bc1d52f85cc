#include "cluster.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "cluster_loops.h"
#include "planes.h"
#include "rans_model.h"

static_assert(std::endian::native == std::endian::little, "elements, cells and signs lie in memory as in the format");

namespace perdure {

using namespace cluster;
using rans::get_u32;
using rans::put_u32;

namespace {

constexpr std::size_t kHeader = 2 + 3 * 4;
constexpr unsigned kLeastBits = 4, kMostBits = 8;
constexpr PlanesKind kBytes{1, false}, kCells{2, false};

constexpr std::size_t groups_of(std::size_t n) { return (n + kGroup - 1) / kGroup; }
constexpr std::size_t sign_bytes(std::size_t n) { return (n + 7) / 8; }

// What one thread needs for a tile; grows once.
struct Room {
    std::vector<u16> cells;
    std::vector<u64> signs;
    std::vector<u8> middles;

    static Room& of_thread(std::size_t groups) {
        thread_local Room room;
        if (room.middles.size() < groups) {
            room.cells.resize(groups * kGroup);
            room.signs.resize(groups);
            room.middles.resize(groups);
        }
        return room;
    }
    u8* sign_bytes() { return reinterpret_cast<u8*>(signs.data()); }
    u8* cell_bytes() { return reinterpret_cast<u8*>(cells.data()); }
};

bool quantize(const u8* x, unsigned value_bits, u8& middle, u16* cells, u64& signs) {
    return quantize_group(x, value_bits, middle, cells, signs);
}

bool restore(const u16* cells, u64 signs, unsigned value_bits, u8 middle, u8* x) {
    return restore_group(cells, signs, value_bits, middle, x);
}

void compare(const u8* x, const u8* y, std::size_t n, Sums& sums) { compare_all<2>(x, y, n, sums); }

// Appends those of the `n` elements whose cell says literal.
u8* put_literals(const u8* x, const u16* cells, std::size_t n, u8* out) {
    for (std::size_t i = 0; i < n; ++i) {
        if (cells[i] >> 8 == kLiteral) out = std::copy(x + 4 * i, x + 4 * i + 4, out);
    }
    return out;
}

}  // namespace

const Loops cluster::kScalarLoops{quantize, restore, compare};

std::size_t cluster_room(std::size_t n) {
    return kHeader + 4 * n + planes_room(kBytes, groups_of(n)) + planes_room(kBytes, sign_bytes(n)) + planes_room(kCells, n);
}

std::size_t cluster_encode(const u8* x, std::size_t n, unsigned value_bits, u8* out) {
    const Loops& loops = cluster::loops(simd());
    Room& room = Room::of_thread(groups_of(n));
    u8 *at = out + kHeader, middle = kMiddle;
    u64 any = 0;
    for (std::size_t group = 0; group < groups_of(n); ++group) {
        const std::size_t start = group * kGroup, size = std::min(kGroup, n - start);
        const u8* from = x + 4 * start;
        u8 last[4 * kGroup] = {};
        if (size < kGroup) from = static_cast<const u8*>(std::memcpy(last, from, 4 * size));
        u16* cells = room.cells.data() + start;
        const bool literals = loops.quantize(from, value_bits, middle, cells, room.signs[group]);
        if (literals) at = put_literals(from, cells, size, at);
        room.middles[group] = middle;
        any |= room.signs[group];
    }
    out[0] = static_cast<u8>(value_bits);
    out[1] = any != 0;
    put_u32(out + 2, static_cast<std::size_t>(at - (out + kHeader)) / 4);
    const std::size_t middles = planes_encode(kBytes, room.middles.data(), nullptr, groups_of(n), at);
    put_u32(out + 6, middles);
    at += middles;
    const std::size_t signs = any == 0 ? 0 : planes_encode(kBytes, room.sign_bytes(), nullptr, sign_bytes(n), at);
    put_u32(out + 10, signs);
    at += signs;
    return static_cast<std::size_t>(at - out) + planes_encode(kCells, room.cell_bytes(), nullptr, n, at);
}

bool cluster_decode(const u8* in, std::size_t nbytes, std::size_t n, u8* out) {
    if (nbytes < kHeader || in[0] < kLeastBits || in[0] > kMostBits || in[1] > 1) return false;
    const unsigned value_bits = in[0];
    const std::size_t literals = get_u32(in + 2), middles = get_u32(in + 6), signs = get_u32(in + 10);
    const std::size_t left = nbytes - kHeader;
    if (literals > n || (signs != 0) != (in[1] == 1) || 4 * literals + middles + signs > left) return false;
    const u8 *literal = in + kHeader, *middles_at = literal + 4 * literals, *signs_at = middles_at + middles;
    const u8 *cells_at = signs_at + signs, *end = in + nbytes;
    Room& room = Room::of_thread(groups_of(n));
    if (!planes_decode(kBytes, middles_at, middles, nullptr, groups_of(n), room.middles.data())) return false;
    std::fill(room.signs.begin(), room.signs.begin() + static_cast<std::ptrdiff_t>(groups_of(n)), 0);
    if (signs != 0 && !planes_decode(kBytes, signs_at, signs, nullptr, sign_bytes(n), room.sign_bytes())) return false;
    if (!planes_decode(kCells, cells_at, static_cast<std::size_t>(end - cells_at), nullptr, n, room.cell_bytes())) return false;
    std::fill(room.cells.begin() + static_cast<std::ptrdiff_t>(n),
              room.cells.begin() + static_cast<std::ptrdiff_t>(groups_of(n) * kGroup), 0);
    const Loops& loops = cluster::loops(simd());
    for (std::size_t group = 0; group < groups_of(n); ++group) {
        const std::size_t start = group * kGroup, size = std::min(kGroup, n - start);
        const u16* cells = room.cells.data() + start;
        u8 *to = out + 4 * start, last[4 * kGroup];
        u8* target = size < kGroup ? last : to;
        const bool some = loops.restore(cells, room.signs[group], value_bits, room.middles[group], target);
        if (size < kGroup) std::memcpy(to, last, 4 * size);
        for (std::size_t i = 0; some && i < size; ++i) {
            if (cells[i] >> 8 != kLiteral) continue;
            if (literal == middles_at) return false;
            std::memcpy(to + 4 * i, literal, 4);
            literal += 4;
        }
    }
    return literal == middles_at;
}

void float32_error(const u8* x, const u8* y, std::size_t n, double* sums, u64* counts) {
    Sums found;
    const std::size_t whole = n / kLanes * kLanes;
    const Loops& loops = cluster::loops(simd());
    loops.compare(x, y, whole, found);
    if (whole < n) {
        u8 was[4 * kLanes] = {}, is[4 * kLanes] = {};
        std::memcpy(was, x + 4 * whole, 4 * (n - whole));
        std::memcpy(is, y + 4 * whole, 4 * (n - whole));
        loops.compare(was, is, kLanes, found);
        found.finite -= kLanes - (n - whole);  // the zeros that fill up the last lanes
    }
    std::fill(sums, sums + 4, 0.0);
    for (std::size_t i = 0; i < kLanes; ++i) {
        sums[0] = std::max(sums[0], found.largest[i]);
        sums[1] = std::max(sums[1], found.relative[i]);
        sums[2] += found.sum_relative[i];
        sums[3] += found.sum_square[i];
    }
    counts[0] = found.finite;
    counts[1] = found.some;
}

}  // namespace perdure
