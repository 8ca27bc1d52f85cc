// Elements of 2 and 4 bytes to planes and back, a vector of each plane at a time. Other widths, and what is left at the end of
// a block, are planes_loops.h's.
//
// Who includes this defines PERDURE_INLINE, which enables its instructions, and has them as `V`, whose vectors are of `kLanes`
// lanes of 16 bytes. Unpacking works within lanes, so bytes are spread before it: `spread4` moves dword k * kLanes + l to dword
// k of lane l, `spread2` does that with qwords, and `together4` and `together2` are their inverses. Signs are turned while bytes
// lie in planes, where one operation does it for four times as many elements.
#pragma once

#include "planes_loops.h"

namespace perdure::planes {

namespace {

template <class V, unsigned kWidth, Change kChange, bool kFloats>
struct Vectors {
    using Vector = typename V::Vector;
    static constexpr std::size_t kStep = 16 * V::kLanes;  // elements a turn
    static constexpr bool kTurned = kChange == Change::turned || kChange == Change::xored;

    // `base` may be null where the change needs none.
    PERDURE_INLINE static Vector changed(Vector x, [[maybe_unused]] const u8* base, [[maybe_unused]] std::size_t at) {
        if constexpr (kChange == Change::xored) return V::exclusive(x, V::load(base + at));
        if constexpr (kChange == Change::distance) {
            Vector before = V::load(base + at);
            if constexpr (kFloats) {
                x = V::template ordered<kWidth>(x);
                before = V::template ordered<kWidth>(before);
            }
            return V::template folded<kWidth>(V::template minus<kWidth>(x, before));
        }
        return x;
    }

    PERDURE_INLINE static Vector restored(Vector y, [[maybe_unused]] const u8* base, [[maybe_unused]] std::size_t at) {
        if constexpr (kChange == Change::xored) return V::exclusive(y, V::load(base + at));
        if constexpr (kChange == Change::distance) {
            Vector before = V::load(base + at);
            if constexpr (kFloats) before = V::template ordered<kWidth>(before);
            y = V::template plus<kWidth>(before, V::template unfolded<kWidth>(y));
            if constexpr (kFloats) y = V::template ordered<kWidth>(y);
        }
        return y;
    }

    PERDURE_INLINE static void turn(Vector& top, Vector& next) {
        const Vector exponent = V::select(V::all(0xfe), V::template left16<1>(top), V::template right16<7>(next));
        next = V::select(V::all(0x80), top, next);
        top = exponent;
    }

    PERDURE_INLINE static void turn_back(Vector& top, Vector& next) {
        const Vector exponent = top;
        top = V::select(V::all(0x80), next, V::template right16<1>(exponent));
        next = V::select(V::all(0x80), V::template left16<7>(exponent), next);
    }

    // As many elements as fill vectors; returns how many those are.
    PERDURE_INLINE static std::size_t split(const u8* x, const u8* base, std::size_t n, u8* const* to) {
        std::size_t at = 0;
        for (; at + kStep <= n; at += kStep) {
            Vector words[kWidth], plane[kWidth];
#pragma GCC unroll 4
            for (unsigned i = 0; i < kWidth; ++i) {
                const std::size_t byte = at * kWidth + i * kStep;
                words[i] = V::template grouped<kWidth>(changed(V::load(x + byte), base, byte));
            }
            if constexpr (kWidth == 2) {
                plane[0] = V::together2(V::low64(words[0], words[1]));
                plane[1] = V::together2(V::high64(words[0], words[1]));
            } else {
                const Vector low0 = V::low32(words[0], words[1]), low1 = V::low32(words[2], words[3]);
                const Vector high0 = V::high32(words[0], words[1]), high1 = V::high32(words[2], words[3]);
                plane[0] = V::together4(V::low64(low0, low1));
                plane[1] = V::together4(V::high64(low0, low1));
                plane[2] = V::together4(V::low64(high0, high1));
                plane[3] = V::together4(V::high64(high0, high1));
            }
            if constexpr (kTurned) turn(plane[0], plane[1]);
#pragma GCC unroll 4
            for (unsigned i = 0; i < kWidth; ++i) V::store(to[i] + at, plane[i]);
        }
        return at;
    }

    // The kStep elements at `at`.
    PERDURE_INLINE static void join_step(const u8* const* planes, const u8* base, std::size_t at, u8* out) {
        Vector plane[kWidth], words[kWidth];
#pragma GCC unroll 4
        for (unsigned i = 0; i < kWidth; ++i) plane[i] = V::load(planes[i] + at);
        if constexpr (kTurned) turn_back(plane[0], plane[1]);
        if constexpr (kWidth == 2) {
            const Vector top = V::spread2(plane[0]), bottom = V::spread2(plane[1]);
            words[0] = V::low8(bottom, top);
            words[1] = V::high8(bottom, top);
        } else {
#pragma GCC unroll 4
            for (unsigned i = 0; i < kWidth; ++i) plane[i] = V::spread4(plane[i]);
            const Vector top0 = V::low8(plane[1], plane[0]), bottom0 = V::low8(plane[3], plane[2]);
            const Vector top1 = V::high8(plane[1], plane[0]), bottom1 = V::high8(plane[3], plane[2]);
            words[0] = V::low16(bottom0, top0);
            words[1] = V::high16(bottom0, top0);
            words[2] = V::low16(bottom1, top1);
            words[3] = V::high16(bottom1, top1);
        }
#pragma GCC unroll 4
        for (unsigned i = 0; i < kWidth; ++i) {
            const std::size_t byte = at * kWidth + i * kStep;
            V::store(out + byte, restored(words[i], base, byte));
        }
    }

    // All `n` elements, if there are enough for a step; returns whether. The last step may overlap with the one before.
    PERDURE_INLINE static bool join(const u8* const* planes, const u8* base, std::size_t n, u8* out) {
        if (n < kStep) return false;
        std::size_t at = 0;
        for (; at + kStep <= n; at += kStep) join_step(planes, base, at, out);
        if (at < n) join_step(planes, base, n - kStep, out);
        return true;
    }
};

template <class V, unsigned kWidth>
PERDURE_INLINE std::size_t split_vectors(bool floats, Change change, const u8* x, const u8* base, std::size_t n, u8* const* to) {
    switch (change) {
        case Change::none: return Vectors<V, kWidth, Change::none, false>::split(x, base, n, to);
        case Change::turned: return Vectors<V, kWidth, Change::turned, false>::split(x, base, n, to);
        case Change::xored: return Vectors<V, kWidth, Change::xored, false>::split(x, base, n, to);
        case Change::distance: break;
    }
    if (floats) return Vectors<V, kWidth, Change::distance, true>::split(x, base, n, to);
    return Vectors<V, kWidth, Change::distance, false>::split(x, base, n, to);
}

template <class V, unsigned kWidth>
PERDURE_INLINE bool join_vectors(bool floats, Change change, const u8* const* planes, const u8* base, std::size_t n,
                                 u8* out) {
    switch (change) {
        case Change::none: return Vectors<V, kWidth, Change::none, false>::join(planes, base, n, out);
        case Change::turned: return Vectors<V, kWidth, Change::turned, false>::join(planes, base, n, out);
        case Change::xored: return Vectors<V, kWidth, Change::xored, false>::join(planes, base, n, out);
        case Change::distance: break;
    }
    if (floats) return Vectors<V, kWidth, Change::distance, true>::join(planes, base, n, out);
    return Vectors<V, kWidth, Change::distance, false>::join(planes, base, n, out);
}

// Vectors as far as they go, then the portable loops.
template <class V>
PERDURE_INLINE void split_most(unsigned width, bool floats, Change change, const u8* x, const u8* base, std::size_t n,
                               u8* const* to) {
    std::size_t done = 0;
    if (width == 2) done = split_vectors<V, 2>(floats, change, x, base, n, to);
    if (width == 4) done = split_vectors<V, 4>(floats, change, x, base, n, to);
    if (done == n) return;
    u8* rest[8];
    for (unsigned plane = 0; plane < width; ++plane) rest[plane] = to[plane] + done;
    split_any(width, floats, change, x + done * width, base == nullptr ? nullptr : base + done * width, n - done, rest);
}

template <class V>
PERDURE_INLINE void join_most(unsigned width, bool floats, Change change, const u8* const* planes, const u8* base,
                              std::size_t n, u8* out) {
    if (width == 2 && join_vectors<V, 2>(floats, change, planes, base, n, out)) return;
    if (width == 4 && join_vectors<V, 4>(floats, change, planes, base, n, out)) return;
    join_any(width, floats, change, planes, base, n, out);
}

}  // namespace

}  // namespace perdure::planes
