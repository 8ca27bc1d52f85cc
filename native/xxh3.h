// XXH3-128 with seed 0 and the default secret, written from the published specification of the algorithm
// ("xxHash fast digest algorithm", version 0.2.0, section XXH3). Results equal those of any other implementation.
//
// Inputs of at most 240 bytes take one of five short recipes (`xxh3_short.cpp`). Longer ones are consumed in blocks of
// 1024 bytes by eight 64-bit lanes; that loop is where the time goes and it has one version per `Simd` level
// (`xxh3_loop.h`). `Stream` lets a caller feed whole blocks one after another, which is what the fused copy needs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure {

inline constexpr std::size_t kDigestBytes = 16;
inline constexpr std::size_t kBlockBytes = 1024;  // 16 stripes of 64 bytes
inline constexpr std::size_t kStripeBytes = 64;
inline constexpr std::size_t kShortBytes = 240;  // up to here an input is "short"

// Write the digest of `nbytes` bytes at `data` to `out[16]`, most significant byte first (the canonical form).
void xxh3_128(const std::uint8_t* data, std::size_t nbytes, std::uint8_t* out);

// The lanes of one long input while its blocks are being consumed.
class Stream {
public:
    Stream();

    // How many blocks of an input of `nbytes` (> kShortBytes) are absorbed before `finish` takes the rest: all but the
    // last one, which may be partial or whole.
    static constexpr std::size_t whole_blocks(std::size_t nbytes) { return (nbytes - 1) / kBlockBytes; }

    // Consume `n_blocks` blocks at `data`.
    void absorb(const std::uint8_t* data, std::size_t n_blocks);

    // Consume `n_blocks` blocks at `data` and store the very bytes consumed at `copy`, which is aligned to 64 and does
    // not overlap `data`. Stores go around the cache; call `store_fence` (stream_copy.h) when all of them are made.
    void absorb_copy(const std::uint8_t* data, std::uint8_t* copy, std::size_t n_blocks);

    // Consume what follows the absorbed blocks of the input `[data, data + nbytes)` and write the digest to `out[16]`.
    void finish(const std::uint8_t* data, std::size_t nbytes, std::uint8_t* out);

private:
    alignas(64) std::uint64_t lanes_[8];
};

}  // namespace perdure
