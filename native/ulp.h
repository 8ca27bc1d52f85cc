// The codec `ulp`: 16-bit and 8-bit floats as signed distances to their base, counted in units of the last place.
//
// A tile is a header and blocks of 2^17 elements (the last one shorter). docs/spec/codecs.md tells every byte.
// Where literals are many, as between distant steps of a hot training, those of all blocks are one tile of `planes`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "piece_digest.h"

namespace perdure {

enum class UlpKind { bfloat16 = 0, float16 = 1, float8 = 2 };

// The most bytes that `ulp_encode` writes for `n` elements.
std::size_t ulp_room(UlpKind kind, std::size_t n);

// Encode `n` elements at `x` against those at `base` into `out`; returns the bytes written. `contexts` (1 to 8) is how many
// ranges of |base| may have statistics of their own; fewer are used where more do not pay, and up to `most`, if that is more,
// where the tile gains little by as many as that: each costs time. `seen`, if there is one, is of both and is told how far they
// were read; the caller finishes it.
std::size_t ulp_encode(UlpKind kind, const std::uint8_t* x, const std::uint8_t* base, std::size_t n, unsigned contexts,
                       unsigned most, std::uint8_t* out, PairDigest* seen = nullptr);

// Decode into `out`, of `n` elements, none of which overlaps `base`; false if [in, in + nbytes) is nothing that an encoder
// wrote. Reads and writes nothing outside of what was passed, whatever the bytes are. `seen` is of `out` and `base`.
bool ulp_decode(UlpKind kind, const std::uint8_t* in, std::size_t nbytes, const std::uint8_t* base, std::size_t n,
                std::uint8_t* out, PairDigest* seen = nullptr);

}  // namespace perdure
