// XXH3-128 of 0 to 240 bytes: five recipes by length. Seed 0 throughout, so the seed's terms are gone.
#include "xxh3_parts.h"

namespace perdure::xxh3 {

namespace {

u64 avalanche_xxh64(u64 x) {
    x ^= x >> 33;
    x *= kPrime64_2;
    x ^= x >> 29;
    x *= kPrime64_3;
    return x ^ (x >> 32);
}

u64 key_pair(std::size_t at) { return load64(kSecret + at) ^ load64(kSecret + at + 8); }

void of_0(u64* low, u64* high) {
    *low = avalanche_xxh64(key_pair(64));
    *high = avalanche_xxh64(key_pair(80));
}

void of_1_to_3(const u8* in, std::size_t n, u64* low, u64* high) {
    const u32 word = static_cast<u32>(in[n - 1]) | (static_cast<u32>(n) << 8) | (static_cast<u32>(in[0]) << 16) |
                     (static_cast<u32>(in[n >> 1]) << 24);
    const u32 mirrored = std::rotl(swap_bytes(word), 13);
    *low = avalanche_xxh64(static_cast<u64>(load32(kSecret) ^ load32(kSecret + 4)) ^ word);
    *high = avalanche_xxh64(static_cast<u64>(load32(kSecret + 8) ^ load32(kSecret + 12)) ^ mirrored);
}

void of_4_to_8(const u8* in, std::size_t n, u64* low, u64* high) {
    const u64 word = load32(in) | (static_cast<u64>(load32(in + n - 4)) << 32);
    const u128 product = static_cast<u128>(key_pair(16) ^ word) * (kPrime64_1 + (n << 2));
    u64 lo = static_cast<u64>(product);
    const u64 hi = static_cast<u64>(product >> 64) + (lo << 1);
    lo ^= hi >> 3;
    lo ^= lo >> 35;
    lo *= kPrimeMx2;
    *low = lo ^ (lo >> 28);
    *high = avalanche(hi);
}

void of_9_to_16(const u8* in, std::size_t n, u64* low, u64* high) {
    const u64 first = load64(in);
    const u64 last = load64(in + n - 8);
    const u64 keyed = key_pair(48) ^ last;
    const u128 product = static_cast<u128>(key_pair(32) ^ first ^ last) * kPrime64_1;
    u64 lo = static_cast<u64>(product) + (static_cast<u64>(n - 1) << 54);
    u64 hi = static_cast<u64>(product >> 64) + keyed + static_cast<u64>(static_cast<u32>(keyed)) * (kPrime32_2 - 1);
    lo ^= swap_bytes(hi);
    const u128 wide = static_cast<u128>(lo) * kPrime64_2;
    *low = avalanche(static_cast<u64>(wide));
    *high = avalanche(static_cast<u64>(wide >> 64) + hi * kPrime64_2);
}

// Two 16-byte pieces of input, mixed crosswise into two sums.
struct Pair {
    u64 a;
    u64 b;

    static u64 mix(const u8* in, std::size_t key_at) {
        return fold(load64(in) ^ load64(kSecret + key_at), load64(in + 8) ^ load64(kSecret + key_at + 8));
    }

    void add(const u8* one, const u8* two, std::size_t key_at) {
        a = (a + mix(one, key_at)) ^ (load64(two) + load64(two + 8));
        b = (b + mix(two, key_at + 16)) ^ (load64(one) + load64(one + 8));
    }

    void finish(std::size_t n, u64* low, u64* high) const {
        *low = avalanche(a + b);
        *high = 0 - avalanche(a * kPrime64_1 + b * kPrime64_4 + n * kPrime64_2);
    }
};

void of_17_to_128(const u8* in, std::size_t n, u64* low, u64* high) {
    Pair sums{n * kPrime64_1, 0};
    for (std::size_t left = ((n - 1) >> 5) + 1; left-- > 0;) {
        sums.add(in + left * 16, in + n - left * 16 - 16, left * 32);
    }
    sums.finish(n, low, high);
}

void of_129_to_240(const u8* in, std::size_t n, u64* low, u64* high) {
    Pair sums{n * kPrime64_1, 0};
    for (std::size_t i = 0; i < 4; ++i) sums.add(in + i * 32, in + i * 32 + 16, i * 32);
    sums = {avalanche(sums.a), avalanche(sums.b)};
    for (std::size_t i = 4; i < n >> 5; ++i) sums.add(in + i * 32, in + i * 32 + 16, (i - 4) * 32 + 3);
    sums.add(in + n - 16, in + n - 32, 103);
    sums.finish(n, low, high);
}

}  // namespace

void digest_short(const u8* data, std::size_t nbytes, u64* low, u64* high) {
    if (nbytes == 0) return of_0(low, high);
    if (nbytes <= 3) return of_1_to_3(data, nbytes, low, high);
    if (nbytes <= 8) return of_4_to_8(data, nbytes, low, high);
    if (nbytes <= 16) return of_9_to_16(data, nbytes, low, high);
    if (nbytes <= 128) return of_17_to_128(data, nbytes, low, high);
    of_129_to_240(data, nbytes, low, high);
}

}  // namespace perdure::xxh3
