// The loops of predict.h. Who includes this makes one version of them, for the instructions that its functions may use:
// everything here is inlined into those. Compilers make vectors of the loops; the build forbids them to fuse operations.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "predict_levels.h"

#define PERDURE_LOOP __attribute__((always_inline)) inline

namespace perdure::predict {

namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

template <class Float>
using Word = std::conditional_t<sizeof(Float) == 4, u32, u64>;

template <class Float>
constexpr Word<Float> kInfinity = sizeof(Float) == 4 ? Word<Float>{0x7f800000u} : static_cast<Word<Float>>(u64{0x7ff} << 52);

constexpr std::size_t kPiece = 1024;  // elements whose sums stay in the nearest cache between terms

template <class T>
PERDURE_LOOP T at(const u8* from, std::size_t i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    return value;
}

template <class T>
PERDURE_LOOP void put(u8* to, std::size_t i, T value) {
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

PERDURE_LOOP float root(float x) { return __builtin_sqrtf(x); }
PERDURE_LOOP double root(double x) { return __builtin_sqrt(x); }

template <class Float>
PERDURE_LOOP void update_all(const u8* x, double keep, const PredictTerm* terms, std::size_t n_terms, std::size_t n, u8* out) {
    alignas(64) Float sum[kPiece];
    const Float kept = static_cast<Float>(keep);
    for (std::size_t start = 0; start < n; start += kPiece) {
        const std::size_t size = n - start < kPiece ? n - start : kPiece;
        const u8* old = x + start * sizeof(Float);
        for (std::size_t i = 0; i < size; ++i) sum[i] = kept * at<Float>(old, i);
        for (std::size_t term = 0; term < n_terms; ++term) {
            const u8* moment = terms[term].moment + start * sizeof(Float);
            const Float by = static_cast<Float>(terms[term].by), eps = static_cast<Float>(terms[term].eps);
            if (terms[term].square == nullptr) {
                for (std::size_t i = 0; i < size; ++i) sum[i] = sum[i] - by * at<Float>(moment, i);
            } else {
                const u8* square = terms[term].square + start * sizeof(Float);
                for (std::size_t i = 0; i < size; ++i) {
                    sum[i] = sum[i] - (by * at<Float>(moment, i)) / (root(at<Float>(square, i)) + eps);
                }
            }
        }
        u8* to = out + start * sizeof(Float);
        for (std::size_t i = 0; i < size; ++i) {
            const auto bits = std::bit_cast<Word<Float>>(sum[i]);
            const auto none = static_cast<Word<Float>>(bits & ~(Word<Float>{1} << (8 * sizeof(Float) - 1))) > kInfinity<Float>;
            put(to, i, none ? at<Word<Float>>(old, i) : bits);
        }
    }
}

template <class Float>
PERDURE_LOOP void square_all(const PredictSquare& how, std::size_t n, u8* out) {
    const Float keep = static_cast<Float>(how.keep), fade = static_cast<Float>(how.fade);
    const Float by = static_cast<Float>(how.by), rest = static_cast<Float>(how.rest);
    const u8 *square = how.square, *before = how.before, *moment = how.moment;
#pragma GCC ivdep
    for (std::size_t i = 0; i < n; ++i) {
        const Float was = at<Float>(before, i);
        const Float d = at<Float>(moment, i) - fade * was;
        const Float sum = keep * at<Float>(square, i) + by * (d * d) + rest * (was * was);
        const auto bits = std::bit_cast<Word<Float>>(sum);
        put(out, i, bits > kInfinity<Float> ? at<Word<Float>>(square, i) : bits);
    }
}

// binary32 as bits; integers alone, so that a NaN stays what it was.
template <class Float>
PERDURE_LOOP u32 single(Word<Float> bits) {
    if constexpr (sizeof(Float) == 4) {
        return bits;
    } else {
        const u32 quiet = static_cast<u32>(bits >> 32 & 0x80000000u) | 0x7fc00000u | static_cast<u32>(bits >> 29 & 0x3fffffu);
        const u32 rounded = std::bit_cast<u32>(static_cast<float>(std::bit_cast<double>(bits)));
        return (bits & ~(u64{1} << 63)) > kInfinity<double> ? quiet : rounded;
    }
}

PERDURE_LOOP u16 bfloat16(u32 bits) {
    const u32 rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return static_cast<u16>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

PERDURE_LOOP u16 float16(u32 bits) {
    const u32 size = bits & 0x7fffffffu;
    const u32 normal = (size + 0xfffu + (size >> 13 & 1) - (112u << 23)) >> 13;  // may carry into the exponent, as it should
    // Below 2^-14: half's subnormals are multiples of 2^-24, which adding 0.5 rounds a binary32 to.
    const u32 small = std::bit_cast<u32>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
    const u32 quiet = 0x7e00u | (size >> 13 & 0x3ffu);
    u32 half = size < (113u << 23) ? small : normal;
    half = size >= 0x477ff000u ? 0x7c00u : half;  // 65520 and more, and infinity
    half = size > 0x7f800000u ? quiet : half;
    return static_cast<u16>(half | (bits >> 16 & 0x8000u));
}

template <class Float>
PERDURE_LOOP void rounding_all(Narrow to, const u8* x, std::size_t n, u8* out) {
    switch (to) {
        case Narrow::bfloat16:
#pragma GCC ivdep
            for (std::size_t i = 0; i < n; ++i) put(out, i, bfloat16(single<Float>(at<Word<Float>>(x, i))));
            return;
        case Narrow::float16:
#pragma GCC ivdep
            for (std::size_t i = 0; i < n; ++i) put(out, i, float16(single<Float>(at<Word<Float>>(x, i))));
            return;
        case Narrow::float32:
#pragma GCC ivdep
            for (std::size_t i = 0; i < n; ++i) put(out, i, single<Float>(at<Word<Float>>(x, i)));
            return;
    }
}

PERDURE_LOOP void update_any(Real kind, const u8* x, double keep, const PredictTerm* terms, std::size_t n_terms, std::size_t n,
                             u8* out) {
    if (kind == Real::float32) return update_all<float>(x, keep, terms, n_terms, n, out);
    update_all<double>(x, keep, terms, n_terms, n, out);
}

PERDURE_LOOP void square_any(Real kind, const PredictSquare& how, std::size_t n, u8* out) {
    if (kind == Real::float32) return square_all<float>(how, n, out);
    square_all<double>(how, n, out);
}

PERDURE_LOOP void rounding_any(Real kind, Narrow to, const u8* x, std::size_t n, u8* out) {
    if (kind == Real::float32) return rounding_all<float>(to, x, n, out);
    rounding_all<double>(to, x, n, out);
}

}  // namespace

}  // namespace perdure::predict
