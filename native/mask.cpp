#include "mask.h"

#include <algorithm>
#include <cstring>

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

const Loops kNoLoops{pick_none, place_none};

}  // namespace mask

namespace {

using u8 = std::uint8_t;

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

}  // namespace

std::size_t mask_encode(unsigned width, const u8* x, const u8* base, std::size_t n, u8* out) {
    u8* values = out + mask_bytes(n);
    const std::size_t done = mask::loops(simd()).pick(width, x, base, n, out, values);
    const u8 *rest = x + done * width, *below = base + done * width;
    u8* bits = out + done / 8;
    switch (width) {
        case 1: values = pick<std::uint8_t>(rest, below, n - done, bits, values); break;
        case 2: values = pick<std::uint16_t>(rest, below, n - done, bits, values); break;
        case 4: values = pick<std::uint32_t>(rest, below, n - done, bits, values); break;
        default: values = pick<std::uint64_t>(rest, below, n - done, bits, values); break;
    }
    return static_cast<std::size_t>(values - out);
}

bool mask_decode(unsigned width, const u8* in, std::size_t nbytes, const u8* base, std::size_t n, u8* out) {
    if (nbytes < mask_bytes(n)) return false;
    const u8 *values = in + mask_bytes(n), *end = in + nbytes;
    const std::size_t done = mask::loops(simd()).place(width, in, values, end, base, n, out);
    const u8 *bits = in + done / 8, *below = base + done * width;
    u8* rest = out + done * width;
    switch (width) {
        case 1: values = place<std::uint8_t>(bits, values, end, below, n - done, rest); break;
        case 2: values = place<std::uint16_t>(bits, values, end, below, n - done, rest); break;
        case 4: values = place<std::uint32_t>(bits, values, end, below, n - done, rest); break;
        default: values = place<std::uint64_t>(bits, values, end, below, n - done, rest); break;
    }
    return values == end;
}

}  // namespace perdure
