// The parts of a valid tile of `mask`, `ulp` or `planes`, so that each can be altered as what it is: bytes at random mostly show in
// the first size that does not fit, and what lies behind it is then never tried.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace fuzz {

using u8 = std::uint8_t;

enum class Kind { number, size, frequencies, bytes, states };

struct Part {
    Kind kind;
    std::vector<u8> bytes;
    int size_at = -1;   // of bytes: the part that says how many elements they are, or none
    unsigned width = 1;  // of bytes: of such an element
};

using Parts = std::vector<Part>;

// The parts of tiles that encoders wrote for `n` elements of `width` bytes (docs/spec/codecs.md).
Parts mask_parts(const std::vector<u8>& tile, std::size_t n);
Parts ulp_parts(const std::vector<u8>& tile, unsigned width, std::size_t n);
Parts planes_parts(const std::vector<u8>& tile, unsigned width, std::size_t n);

// Alter a few of them; sizes may still fit what they tell, or not.
void alter(Parts& parts, std::mt19937_64& random_bits);

std::vector<u8> joined(const Parts& parts);

}  // namespace fuzz
