// The loops of cluster.h. Who includes this makes one version of them, for the instructions that its functions may use:
// everything here is inlined into those. Compiled without fused multiply-add, which would round otherwise.
#pragma once

#include <cstring>

#include "cluster.h"

#define PERDURE_LOOP __attribute__((always_inline)) inline

namespace perdure::cluster {

namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u32 kMagnitude = 0x7fffffff, kLeastNormal = 0x00800000, kInfinity = 0x7f800000;

PERDURE_LOOP bool quantize_group(const u8* x, unsigned value_bits, u8& middle, u16* cells, u64& signs) {
    const unsigned shift = 23 - value_bits;
    const u32 half = u32{1} << (shift - 1), mask = (u32{1} << value_bits) - 1;
    u32 words[kGroup], low[kGroup], high[kGroup];
    std::memcpy(words, x, sizeof words);
    u32 sum = 0, octaves = 0;
    for (std::size_t i = 0; i < kGroup; ++i) {
        const u32 size = words[i] & kMagnitude, rounded = size + half;
        const bool normal = size >= kLeastNormal && rounded < kInfinity;
        const u32 octave = rounded >> 23;
        low[i] = rounded >> shift & mask;
        high[i] = normal ? octave : size == 0 ? 0 : 0xffff;  // 0xffff is too far from any middle
        low[i] = normal ? low[i] : 0;
        sum += normal ? octave : 0;
        octaves += normal;
    }
    if (octaves != 0) middle = static_cast<u8>((2 * sum + octaves) / (2 * octaves));
    const u32 from = kMiddle - u32{middle};
    u32 literals = 0;
    for (std::size_t i = 0; i < kGroup; ++i) {
        const u32 label = high[i] + from;  // of an octave, 1 to 254 where it is one of this group's; else far above
        const bool zero = high[i] == 0, near = label - 1 < kLiteral - 1;
        const u32 cell = label << 8 | low[i];
        cells[i] = static_cast<u16>(zero ? 0 : near ? cell : kLiteral << 8);
        literals |= !zero && !near;
    }
    u64 bits = 0;
    for (std::size_t i = 0; i < kGroup; ++i) bits |= u64{words[i] >> 31} << i;
    signs = bits;
    return literals != 0;
}

PERDURE_LOOP bool restore_group(const u16* cells, u64 signs, unsigned value_bits, u8 middle, u8* x) {
    const unsigned shift = 23 - value_bits;
    const u32 mask = (u32{1} << value_bits) - 1, from = u32{middle} - kMiddle;
    u32 words[kGroup], literals = 0;
    for (std::size_t i = 0; i < kGroup; ++i) {
        const u32 cell = cells[i], label = cell >> 8;
        const u32 size = ((label + from) << 23) + ((cell & mask) << shift);
        words[i] = (label == kZero ? 0 : size & kMagnitude) | static_cast<u32>(signs >> i & 1) << 31;
        literals |= label == kLiteral;
    }
    std::memcpy(x, words, sizeof words);
    return literals != 0;
}

// Vectors of the compiler, since it makes none of the plain loop with its division: `kWide` doubles each, as the processor has.
template <std::size_t kWide>
struct Wide {
    typedef u32 Words __attribute__((vector_size(4 * kWide)));
    typedef float Floats __attribute__((vector_size(4 * kWide)));
    typedef double Doubles __attribute__((vector_size(8 * kWide)));
    typedef std::int64_t Masks __attribute__((vector_size(8 * kWide)));
};

template <std::size_t kWide>
PERDURE_LOOP void compare_all(const u8* x, const u8* y, std::size_t n, Sums& sums) {
    using Words = typename Wide<kWide>::Words;
    using Floats = typename Wide<kWide>::Floats;
    using Doubles = typename Wide<kWide>::Doubles;
    using Masks = typename Wide<kWide>::Masks;
    constexpr std::int64_t kNoSign = ~std::int64_t{0} ^ std::int64_t{1} << 63;
    for (std::size_t skip = 0; skip < kLanes; skip += kWide) {
        Doubles largest, relative, sum_relative, sum_square;
        std::memcpy(&largest, sums.largest + skip, sizeof largest);
        std::memcpy(&relative, sums.relative + skip, sizeof relative);
        std::memcpy(&sum_relative, sums.sum_relative + skip, sizeof sum_relative);
        std::memcpy(&sum_square, sums.sum_square + skip, sizeof sum_square);
        Words finite{}, some{};  // a lane has fewer elements than these can count
        for (std::size_t at = skip; at < n; at += kLanes) {
            Words was, is;
            std::memcpy(&was, x + 4 * at, sizeof was);
            std::memcpy(&is, y + 4 * at, sizeof is);
            const Words size = was & kMagnitude;
            const Words number = reinterpret_cast<Words>(size < kInfinity);
            finite -= number;
            some -= number & reinterpret_cast<Words>(size != 0);
            was &= number;
            is &= number;
            const Doubles before = __builtin_convertvector(reinterpret_cast<Floats>(was), Doubles);
            const Doubles after = __builtin_convertvector(reinterpret_cast<Floats>(is), Doubles);
            const Doubles distance = reinterpret_cast<Doubles>(reinterpret_cast<Masks>(before - after) & kNoSign);
            const Doubles whole = reinterpret_cast<Doubles>(reinterpret_cast<Masks>(before) & kNoSign);
            const Doubles ratio = whole == 0.0 ? Doubles{} : distance / (whole == 0.0 ? Doubles{} + 1.0 : whole);
            largest = distance > largest ? distance : largest;
            relative = ratio > relative ? ratio : relative;
            sum_relative += ratio;
            sum_square += distance * distance;
        }
        std::memcpy(sums.largest + skip, &largest, sizeof largest);
        std::memcpy(sums.relative + skip, &relative, sizeof relative);
        std::memcpy(sums.sum_relative + skip, &sum_relative, sizeof sum_relative);
        std::memcpy(sums.sum_square + skip, &sum_square, sizeof sum_square);
        for (std::size_t i = 0; i < kWide; ++i) {
            sums.finite += finite[i];
            sums.some += some[i];
        }
    }
}

}  // namespace

}  // namespace perdure::cluster
