#include <immintrin.h>

#include <cstring>

#include "simd.h"
#include "stream_copy.h"

namespace perdure {

namespace {

using u8 = std::uint8_t;

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kPages = 4;  // copied side by side
constexpr std::size_t kRoundBytes = kPages * kPageBytes;

// Each copies `rounds` rounds to `dst`, aligned to 64. Two lines of each page in turn.

void rounds_sse2(u8* dst, const u8* src, std::size_t rounds) {
    for (; rounds > 0; --rounds, dst += kRoundBytes, src += kRoundBytes) {
        for (std::size_t at = 0; at < kPageBytes; at += 64) {
            for (std::size_t page = 0; page < kPages; ++page) {
                const auto* from = reinterpret_cast<const __m128i*>(src + page * kPageBytes + at);
                auto* to = reinterpret_cast<__m128i*>(dst + page * kPageBytes + at);
                const __m128i a = _mm_loadu_si128(from);
                const __m128i b = _mm_loadu_si128(from + 1);
                const __m128i c = _mm_loadu_si128(from + 2);
                const __m128i d = _mm_loadu_si128(from + 3);
                _mm_stream_si128(to, a);
                _mm_stream_si128(to + 1, b);
                _mm_stream_si128(to + 2, c);
                _mm_stream_si128(to + 3, d);
            }
        }
    }
}

__attribute__((target("avx2"))) void rounds_avx2(u8* dst, const u8* src, std::size_t rounds) {
    for (; rounds > 0; --rounds, dst += kRoundBytes, src += kRoundBytes) {
        for (std::size_t at = 0; at < kPageBytes; at += 128) {
            for (std::size_t page = 0; page < kPages; ++page) {
                const auto* from = reinterpret_cast<const __m256i*>(src + page * kPageBytes + at);
                auto* to = reinterpret_cast<__m256i*>(dst + page * kPageBytes + at);
                const __m256i a = _mm256_loadu_si256(from);
                const __m256i b = _mm256_loadu_si256(from + 1);
                const __m256i c = _mm256_loadu_si256(from + 2);
                const __m256i d = _mm256_loadu_si256(from + 3);
                _mm256_stream_si256(to, a);
                _mm256_stream_si256(to + 1, b);
                _mm256_stream_si256(to + 2, c);
                _mm256_stream_si256(to + 3, d);
            }
        }
    }
}

__attribute__((target("avx512f"))) void rounds_avx512(u8* dst, const u8* src, std::size_t rounds) {
    for (; rounds > 0; --rounds, dst += kRoundBytes, src += kRoundBytes) {
        for (std::size_t at = 0; at < kPageBytes; at += 128) {
            for (std::size_t page = 0; page < kPages; ++page) {
                const u8* from = src + page * kPageBytes + at;
                u8* to = dst + page * kPageBytes + at;
                const __m512i a = _mm512_loadu_si512(from);
                const __m512i b = _mm512_loadu_si512(from + 64);
                _mm512_stream_si512(reinterpret_cast<__m512i*>(to), a);
                _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 64), b);
            }
        }
    }
}

}  // namespace

void stream_copy(u8* dst, const u8* src, std::size_t nbytes) {
    const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(dst) % 64) % 64;
    if (nbytes < head + kRoundBytes) {
        std::memcpy(dst, src, nbytes);
        return;
    }
    std::memcpy(dst, src, head);
    const std::size_t rounds = (nbytes - head) / kRoundBytes;
    switch (simd()) {
        case Simd::avx512: rounds_avx512(dst + head, src + head, rounds); break;
        case Simd::avx2: rounds_avx2(dst + head, src + head, rounds); break;
        default: rounds_sse2(dst + head, src + head, rounds); break;
    }
    store_fence();
    const std::size_t done = head + rounds * kRoundBytes;
    std::memcpy(dst + done, src + done, nbytes - done);
}

void store_fence() { _mm_sfence(); }

}  // namespace perdure
