// The entropy coder of `ulp` and `planes`: 128 interleaved 16-bit rANS states over an alphabet of 16 classes.
//
// Theory. A class is coded with 8-bit probabilities: state x in [2^8, 2^16), class of frequency f (1 to 255, the sum is 256)
// that starts at c. To encode: if x >= f << 8, give its low byte away and keep the high one; then x = (x / f << 8) + x % f + c.
// To decode: the low byte of x is a slot; the class is whose range holds it; x = f * (x >> 8) + slot - c; if x < 256, take a
// byte in. A class may carry 0 to 8 raw bits: they are pushed into the same state (x << bits | raw) before the class, and give
// and take their bytes from a stream of their own, for else the two would wait for each other.
//
// Since both tests look at the high byte alone and what moves is the low one, the states are kept as two vectors of bytes.
// Every step is then a byte operation on 64 lanes, but for the multiplication. Two groups of 64 lanes take turns. The tables
// are registers: 16 classes by 4 contexts are the 64 bytes of one permutation.
//
// Order. Group g of 64 symbols belongs to lanes of set g & 1. The encoder goes from the last group to the first and appends;
// the decoder starts at the end of both streams and goes back. In one group and stream, bytes lie in lane order. All states
// begin as 256; what they end as is stored, and must be 256 again when all is decoded. docs/spec/codecs.md has an example.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd.h"

namespace perdure::rans {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

inline constexpr std::size_t kLanes = 64;                    // symbols of one group
inline constexpr std::size_t kRound = 2 * kLanes;            // symbols are padded to a multiple of this
inline constexpr std::size_t kClasses = 16;
inline constexpr std::size_t kMaxContexts = 8;
inline constexpr std::size_t kCells = kMaxContexts * kClasses;
inline constexpr std::size_t kStateBytes = 2 * kRound;       // set 0: 64 low bytes, 64 high bytes; then set 1
inline constexpr std::size_t kSlack = 64;                    // a kernel may read or write this far past the end of a stream
inline constexpr std::size_t kBlock = std::size_t{1} << 17;  // most elements of a block
inline constexpr u8 kEscape = 15;                            // the last class: the element is a literal

// What encoder and decoder must agree on. A cell is context * 16 + class; `freq` of a cell that never occurs is 0.
struct Model {
    unsigned contexts = 1;  // 1 to 8
    u8 freq[kCells] = {};
    u8 start[kCells] = {};
    u8 bits[kClasses] = {};  // raw bits of a class, at most 8

    // Whether any class has raw bits; else that half of every step is left out.
    bool has_bits() const {
        u8 any = 0;
        for (const u8 n : bits) any |= n;
        return any != 0;
    }
};

// Where the parts of a coded block lie. Behind each stream at least kSlack bytes can be read.
struct Streams {
    const u8* symbols;
    const u8* raws;
    const u8* literals;
    const u8* states;  // kStateBytes
    std::size_t n_symbols, n_raws, n_literals;
};

// How elements of `ulp` are seen: `width` bytes each; the bin of a base is its magnitude >> `shift`, less `first`, cut to
// [0, 63]; `context` maps bins to 16 * context.
struct View {
    unsigned width;  // 1 or 2
    unsigned shift;  // 7 (bfloat16), 9 (float16) or 1 (8 bits); `first` is 0 but for 7
    u8 first = 0;
    u8 context[64] = {};
};

// The classes of `planes`: each is a range of byte values, but for escapes, which are literals.
struct Ranges {
    u8 of[256];             // the class of a byte
    u8 first[kClasses];     // the first value of a class; raw bits count from it
};

// What the caller reads or writes next: the vector versions ask for `step` bytes of each while they do a round of symbols. Coding
// needs no memory and what comes before and after it needs nothing else, so this lets the two overlap. May reach past the end of
// what is there: to ask never faults.
struct Ahead {
    static constexpr std::size_t kMost = 12;
    const u8* at[kMost] = {};
    std::size_t step[kMost] = {};

    void add(const u8* address, std::size_t bytes) {
        for (std::size_t i = 0; i < kMost; ++i) {
            if (step[i] != 0) continue;
            at[i] = address;
            step[i] = bytes;
            return;
        }
    }

    // Call once a round.
    __attribute__((always_inline)) inline void ask() {
        for (std::size_t i = 0; i < kMost; ++i) {
            for (std::size_t byte = 0; byte < step[i]; byte += 64) __builtin_prefetch(at[i] + byte, 0, 2);
            at[i] += step[i];
        }
    }
};

struct ByteReader;  // rans_bytes.h

// One version for each `Simd` level. `index` and `raw` get or have a byte a symbol, in lane order, padded to kRound.
struct Kernels {
    // The classes of the signed distances of `n` elements at `x` from those at `base`; `counts[kCells]` is overwritten.
    // Elements beyond `n` count as equal to a base of 0. Returns the literals (escapes), which go to `literals` in order.
    // Lane j of a group is element (j >> 1) + 32 * (j & 1) of it.
    std::size_t (*ulp_classify)(const u8* x, const u8* base, std::size_t n, const View& view, unsigned contexts, u8* index,
                                u8* raw, u8* literals, u32* counts);
    // Encode `n_padded` symbols; returns bytes by reference, room for n_padded + kSlack each.
    void (*encode)(const u8* index, const u8* raw, std::size_t n_padded, const Model& model, Ahead ahead, u8* symbols, u8* raws,
                   u8* states, std::size_t& n_symbols, std::size_t& n_raws);
    // The elements again; false if the streams are nothing that an encoder wrote.
    bool (*ulp_decode)(const Model& model, const Streams& in, const u8* base, std::size_t n, const View& view, u8* out);
    // The classes of `n` bytes, in their own order, by ranges in rising order; those beyond `n` count as the first value of class
    // 0. Returns the literals.
    std::size_t (*byte_classify)(const u8* bytes, std::size_t n, const Ranges& ranges, u8* index, u8* raw, u8* literals,
                                 u32* counts);
    // The next `n` bytes of each of `count` readers, one or two, each to its `out`. Two take turns in one loop, so that neither
    // waits for its states; in both or in none there may be raw bits. False if a stream is nothing that an encoder wrote.
    bool (*byte_decode)(ByteReader* const* readers, unsigned count, std::size_t n, Ahead ahead, u8* const* out);
};

const Kernels& kernels(Simd level);

extern const Kernels kScalar;
extern const Kernels kAvx2;
extern const Kernels kAvx512;

// The class of a distance |d| < 256, the first |d| of a class, and its raw bits, the sign among them.
inline constexpr u8 kFirst[kClasses] = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 0};
inline constexpr u8 kBits[kClasses] = {0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 8, 0};
constexpr u8 class_of(unsigned magnitude) {
    u8 found = 0;
    while (found < 14 && kFirst[found + 1] <= magnitude) ++found;
    return found;
}

// One stream that is read from its end. The vector loops take up to 64 bytes a group at any place of it, so near its begin
// it goes on in a copy with room below: reading too far is then noticed afterwards and harmless.
struct Backward {
    const u8* at;
    const u8* begin;
    bool copied = false;
    u8 copy[kRound + kRound + kSlack];

    Backward(const u8* stream, std::size_t n) : at(stream + n), begin(stream) {}

    // Call before every kRound symbols; false if more was taken than there is.
    bool ready() {
        if (at - begin >= static_cast<std::ptrdiff_t>(kRound)) [[likely]] return true;
        return near_begin();
    }
    bool done() const { return at == begin; }

private:
    bool near_begin();
};

}  // namespace perdure::rans
