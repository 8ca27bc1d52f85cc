// The block loop in portable C++: right on every architecture, either byte order.
#include "xxh3_loop.h"
#include "xxh3_parts.h"

namespace perdure::xxh3 {

namespace {

void scramble(u64* lanes) {
    for (std::size_t i = 0; i < 8; ++i) {
        lanes[i] = (lanes[i] ^ (lanes[i] >> 47) ^ load64(kSecret + kScrambleAt + 8 * i)) * kPrime32_1;
    }
}

void absorb(u64* lanes, const u8* in, std::size_t n_blocks) {
    for (; n_blocks > 0; --n_blocks, in += kStripes * 64) {
        for (std::size_t s = 0; s < kStripes; ++s) absorb_stripe(lanes, in + 64 * s, kSecret + 8 * s);
        scramble(lanes);
    }
}

void absorb_copy(u64* lanes, const u8* in, u8* out, std::size_t n_blocks) {
    for (; n_blocks > 0; --n_blocks, in += kStripes * 64, out += kStripes * 64) {
        std::memcpy(out, in, kStripes * 64);
        absorb(lanes, out, 1);
    }
}

}  // namespace

void absorb_stripe(u64* lanes, const u8* stripe, const u8* key) {
    for (std::size_t i = 0; i < 8; ++i) {
        const u64 word = load64(stripe + 8 * i);
        const u64 value = word ^ load64(key + 8 * i);
        lanes[i ^ 1] += word;
        lanes[i] += static_cast<u64>(static_cast<u32>(value)) * (value >> 32);
    }
}

const Loop kScalarLoop{absorb, absorb_copy};

}  // namespace perdure::xxh3
