#include "xxh3.h"

#include "xxh3_loop.h"
#include "xxh3_parts.h"

namespace perdure {

using namespace xxh3;

namespace {

u64 merge(const u64* lanes, std::size_t key_at, u64 sum) {
    for (std::size_t i = 0; i < 8; i += 2) {
        sum += fold(lanes[i] ^ load64(kSecret + key_at + 8 * i), lanes[i + 1] ^ load64(kSecret + key_at + 8 * i + 8));
    }
    return avalanche(sum);
}

}  // namespace

Stream::Stream()
    : lanes_{kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3, kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1} {}

void Stream::absorb(const u8* data, std::size_t n_blocks) { loop(simd()).absorb(lanes_, data, n_blocks); }

void Stream::absorb_copy(const u8* data, u8* copy, std::size_t n_blocks) {
    loop(simd()).absorb_copy(lanes_, data, copy, n_blocks);
}

void Stream::finish(const u8* data, std::size_t nbytes, u8* out) {
    const u8* rest = data + whole_blocks(nbytes) * kBlockBytes;
    const std::size_t full_stripes = (nbytes - 1) % kBlockBytes / kStripeBytes;
    for (std::size_t s = 0; s < full_stripes; ++s) absorb_stripe(lanes_, rest + 64 * s, kSecret + 8 * s);
    absorb_stripe(lanes_, data + nbytes - kStripeBytes, kSecret + kLastStripeAt);
    const u64 low = merge(lanes_, 11, nbytes * kPrime64_1);
    const u64 high = merge(lanes_, kSecretBytes - 75, ~(nbytes * kPrime64_2));
    store_canonical(low, high, out);
}

void xxh3_128(const u8* data, std::size_t nbytes, u8* out) {
    if (nbytes <= kShortBytes) {
        u64 low = 0;
        u64 high = 0;
        digest_short(data, nbytes, &low, &high);
        return store_canonical(low, high, out);
    }
    Stream stream;
    stream.absorb(data, Stream::whole_blocks(nbytes));
    stream.finish(data, nbytes, out);
}

}  // namespace perdure
