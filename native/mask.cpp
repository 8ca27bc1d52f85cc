#include "mask.h"

#include <algorithm>
#include <cstring>

#include "stream_copy.h"

namespace perdure {

namespace mask {

namespace {

std::size_t pick_none(unsigned, const std::uint8_t*, const std::uint8_t*, std::size_t, std::uint8_t*, std::uint8_t*&) {
    return 0;
}

std::size_t place_none(unsigned, const std::uint8_t*, const std::uint8_t*&, const std::uint8_t*, const std::uint8_t*,
                       std::size_t, std::uint8_t*) {
    return 0;
}

}  // namespace

const Loops kNoLoops{pick_none, place_none, place_none};

}  // namespace mask

namespace {

using u8 = std::uint8_t;

constexpr std::size_t kPieceBytes = std::size_t{64} << 10;  // what is digested while it is in the cache

// Every element is stored and the place moves on if it differs: no branch for the processor to guess.
template <class Word>
u8* pick(const u8* x, const u8* base, std::size_t n, u8* bits, u8* values) {
    for (std::size_t i = 0; i < n; i += 8, ++bits) {
        unsigned byte = 0;
        for (std::size_t j = 0; j < std::min<std::size_t>(8, n - i); ++j) {
            Word now, before;
            std::memcpy(&now, x + (i + j) * sizeof now, sizeof now);
            std::memcpy(&before, base + (i + j) * sizeof now, sizeof now);
            std::memcpy(values, &now, sizeof now);
            values += now != before ? sizeof now : 0;
            byte |= static_cast<unsigned>(now != before) << j;
        }
        *bits = static_cast<u8>(byte);
    }
    return values;
}

template <class Word>
const u8* place(const u8* bits, const u8* values, const u8* end, const u8* base, std::size_t n, u8* out) {
    std::memcpy(out, base, n * sizeof(Word));
    for (std::size_t i = 0; i < n; i += 8, ++bits) {
        const std::size_t here = std::min<std::size_t>(8, n - i);
        if (*bits >> here != 0) return nullptr;
        if (static_cast<std::size_t>(end - values) < sizeof(Word) * static_cast<unsigned>(__builtin_popcount(*bits))) {
            return nullptr;
        }
        for (unsigned left = *bits; left != 0; left &= left - 1, values += sizeof(Word)) {
            std::memcpy(out + (i + static_cast<unsigned>(__builtin_ctz(left))) * sizeof(Word), values, sizeof(Word));
        }
    }
    return values;
}

// Values that are left to read. A vector loop reads a vector wherever it is, so it stops before the last ones: they are copied to
// where more can be read, and it goes on.
struct Source {
    static constexpr std::size_t kRoom = 64 * 8;  // the most that one turn of a loop reads

    const u8* at;
    const u8* end;         // of what can be read
    const u8* last = end;  // of what there is
    bool copied = false;
    u8 copy[2 * kRoom];

    Source(const u8* from, const u8* to) : at(from), end(to) {}

    void turn_to_copy() {
        const auto left = static_cast<std::size_t>(end - at);
        std::memset(copy, 0, sizeof copy);
        std::memcpy(copy, at, left);
        at = copy;
        last = copy + left;
        end = last + kRoom;
        copied = true;
    }
};

u8* pick_rest(unsigned width, const u8* x, const u8* base, std::size_t n, u8* bits, u8* values) {
    switch (width) {
        case 1: return pick<std::uint8_t>(x, base, n, bits, values);
        case 2: return pick<std::uint16_t>(x, base, n, bits, values);
        case 4: return pick<std::uint32_t>(x, base, n, bits, values);
        default: return pick<std::uint64_t>(x, base, n, bits, values);
    }
}

const u8* place_rest(unsigned width, const u8* bits, const u8* values, const u8* end, const u8* base, std::size_t n, u8* out) {
    switch (width) {
        case 1: return place<std::uint8_t>(bits, values, end, base, n, out);
        case 2: return place<std::uint16_t>(bits, values, end, base, n, out);
        case 4: return place<std::uint32_t>(bits, values, end, base, n, out);
        default: return place<std::uint64_t>(bits, values, end, base, n, out);
    }
}

// A piece of a tile: false if there are not as many values as its bits say.
bool place_piece(const mask::Loops& loops, unsigned width, const u8* bits, Source& from, const u8* base, std::size_t n, u8* out,
                 bool stays) {
    const auto place = stays ? loops.place : loops.place_around;
    std::size_t done = place(width, bits, from.at, from.end, base, n, out);
    if (done + 64 <= n && !from.copied && &loops != &mask::kNoLoops) {
        from.turn_to_copy();
        done += place(width, bits + done / 8, from.at, from.end, base + done * width, n - done, out + done * width);
    }
    if (from.at > from.last) return false;
    from.at = place_rest(width, bits + done / 8, from.at, from.last, base + done * width, n - done, out + done * width);
    return from.at != nullptr;
}

}  // namespace

std::size_t mask_encode(unsigned width, const u8* x, const u8* base, std::size_t n, u8* out, PairDigest* seen) {
    const mask::Loops& loops = mask::loops(simd());
    u8* values = out + mask_bytes(n);
    const std::size_t piece = seen == nullptr ? n : kPieceBytes / width;
    for (std::size_t i = 0; i < n; i += piece) {
        const std::size_t here = std::min(piece, n - i);
        const u8 *now = x + i * width, *before = base + i * width;
        u8* bits = out + i / 8;
        if (seen != nullptr) seen->reach((i + here) * width);
        const std::size_t done = loops.pick(width, now, before, here, bits, values);
        values = pick_rest(width, now + done * width, before + done * width, here - done, bits + done / 8, values);
    }
    store_fence();
    return static_cast<std::size_t>(values - out);
}

bool mask_decode(unsigned width, const u8* in, std::size_t nbytes, const u8* base, std::size_t n, u8* out, PairDigest* seen) {
    if (nbytes < mask_bytes(n)) return false;
    const mask::Loops& loops = mask::loops(simd());
    Source from(in + mask_bytes(n), in + nbytes);
    if (seen == nullptr) {
        const bool good = place_piece(loops, width, in, from, base, n, out, false) && from.at == from.last;
        store_fence();
        return good;
    }
    alignas(64) static thread_local u8 near[kPieceBytes];
    const bool aligned = reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
    for (std::size_t i = 0; i < n; i += kPieceBytes / width) {
        const std::size_t here = std::min(kPieceBytes / width, n - i);
        u8* to = out + i * width;
        if (!place_piece(loops, width, in + i / 8, from, base + i * width, here, aligned ? near : to, true)) return false;
        if (aligned) seen->tile.bring(near, to, here * width);
        seen->reach((i + here) * width);
    }
    store_fence();
    return from.at == from.last;
}

}  // namespace perdure
