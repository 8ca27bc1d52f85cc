// The codec `mask`: one bit for each element that says whether it differs from its base, then the elements that do.
//
// Bit i of byte i / 8, least significant first; unused bits of the last byte are 0. Elements of 1, 2, 4 or 8 bytes are
// compared as bits: a NaN equals the same NaN and -0 is not 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "piece_digest.h"
#include "simd.h"

namespace perdure {

constexpr std::size_t mask_bytes(std::size_t n) { return n / 8 + (n % 8 != 0); }

// The most bytes that `mask_encode` touches for `n` elements.
constexpr std::size_t mask_room(unsigned width, std::size_t n) { return mask_bytes(n) + n * width + 64; }

// Encode `n` elements of `width` bytes at `x` against those at `base` into `out`; returns the bytes written.
// `seen`, if there is one, is of both and is told how far they were read; the caller finishes it.
std::size_t mask_encode(unsigned width, const std::uint8_t* x, const std::uint8_t* base, std::size_t n, std::uint8_t* out,
                        PairDigest* seen = nullptr);

// Decode into `out`; false if [in, in + nbytes) is nothing that an encoder wrote. `seen` is of `out` and `base`.
bool mask_decode(unsigned width, const std::uint8_t* in, std::size_t nbytes, const std::uint8_t* base, std::size_t n,
                 std::uint8_t* out, PairDigest* seen = nullptr);

namespace mask {

// The loops that have a version for each `Simd` level. They do a multiple of 64 elements from the first one on, as many as
// they can, and say how many; `values` moves on. The portable version does none: the rest is done by mask.cpp anyway.
// `pick` and `place_around` may store around the caches (mask.cpp ends with a `store_fence`), `place` leaves in them what it wrote.
struct Loops {
    std::size_t (*pick)(unsigned width, const std::uint8_t* x, const std::uint8_t* base, std::size_t n, std::uint8_t* bits,
                        std::uint8_t*& values);
    std::size_t (*place)(unsigned width, const std::uint8_t* bits, const std::uint8_t*& values, const std::uint8_t* end,
                         const std::uint8_t* base, std::size_t n, std::uint8_t* out);
    decltype(place) place_around;
};

const Loops& loops(Simd level);

extern const Loops kNoLoops;
extern const Loops kAvx2Loops;
extern const Loops kAvx512Loops;

}  // namespace mask

}  // namespace perdure
