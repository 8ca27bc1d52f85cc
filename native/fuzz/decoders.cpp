// Hostile bytes for the decoders of `mask`, `ulp`, `planes` and `cluster`, at every instruction level of this processor.
//
// Built with -fsanitize=address,undefined by tests/native/test_decoder_fuzz.py; input and output lie in allocations of exactly
// their size, so one byte too far ends the run. Each tile is encoded, must come back at every level, and is then altered: in its
// parts, as what they are, or anywhere. Codecs take turns, and so do levels; prints how many cases each pair had.
// Usage: decoders CASES SEED.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../cluster.h"
#include "../mask.h"
#include "../planes.h"
#include "../simd.h"
#include "../ulp.h"
#include "tile_parts.h"

namespace {

using u8 = std::uint8_t;

std::mt19937_64 random_bits;

std::size_t below(std::size_t n) { return random_bits() % n; }

// Bytes of exactly this size, so that the sanitizer sees every step beyond.
struct Exact {
    u8* at;
    std::size_t size;
    explicit Exact(std::size_t n) : at(static_cast<u8*>(std::malloc(n))), size(n) {}
    explicit Exact(const std::vector<u8>& from) : Exact(from.size()) {
        if (size != 0) std::memcpy(at, from.data(), size);
    }
    Exact(const Exact&) = delete;
    Exact& operator=(const Exact&) = delete;
    ~Exact() { std::free(at); }
};

struct Codec {
    int which;          // 0 mask, 1 ulp, 2 planes
    unsigned width;     // of mask and planes
    bool floats;
    bool on_base;
    perdure::UlpKind kind;

    std::size_t itemsize() const { return which == 1 ? (kind == perdure::UlpKind::float8 ? 1 : 2) : width; }

    std::vector<u8> encode(const u8* x, const u8* base, std::size_t n) const {
        using namespace perdure;
        const PlanesKind planes{width, floats};
        std::vector<u8> out(which == 0 ? mask_room(width, n) : which == 1 ? ulp_room(kind, n) : planes_room(planes, n));
        const std::size_t size = which == 0   ? mask_encode(width, x, base, n, out.data())
                                 : which == 1 ? ulp_encode(kind, x, base, n, 1 + static_cast<unsigned>(below(8)),
                                                           static_cast<unsigned>(below(9)), out.data())
                                              : planes_encode(planes, x, on_base ? base : nullptr, n, out.data());
        out.resize(size);
        return out;
    }

    fuzz::Parts parts(const std::vector<u8>& tile, std::size_t n) const {
        if (which == 0) return fuzz::mask_parts(tile, n);
        const auto size = static_cast<unsigned>(itemsize());
        return which == 1 ? fuzz::ulp_parts(tile, size, n) : fuzz::planes_parts(tile, size, n);
    }

    bool decode(const Exact& in, const Exact& base, std::size_t n, u8* out) const {
        using namespace perdure;
        if (below(2) == 0 && which < 2 && n != 0) {
            PairDigest seen(out, base.at, n * itemsize());
            return which == 0 ? mask_decode(width, in.at, in.size, base.at, n, out, &seen)
                              : ulp_decode(kind, in.at, in.size, base.at, n, out, &seen);
        }
        if (which == 0) return mask_decode(width, in.at, in.size, base.at, n, out);
        if (which == 1) return ulp_decode(kind, in.at, in.size, base.at, n, out);
        return planes_decode({width, floats}, in.at, in.size, on_base ? base.at : nullptr, n, out);
    }
};

void alter_anywhere(std::vector<u8>& data) {
    for (std::size_t times = 1 + below(4); times > 0 && !data.empty(); --times) {
        const std::size_t at = below(2) == 0 ? below(data.size()) : below(data.size() < 64 ? data.size() : 64);
        switch (below(7)) {
            case 0: data[at] ^= static_cast<u8>(1u << below(8)); break;
            case 1: data[at] = static_cast<u8>(random_bits()); break;
            case 2: data.resize(at); break;
            case 3: data.insert(data.begin() + static_cast<std::ptrdiff_t>(at), 1 + below(300), static_cast<u8>(random_bits())); break;
            case 4: data.erase(data.begin() + static_cast<std::ptrdiff_t>(at)); break;
            case 5: {  // a size, or what could be one
                const std::uint32_t sizes[] = {0, 1, 127, 128, 1u << 17, (1u << 17) + 1, 0x7fffffff, 0xffffffff,
                                               static_cast<std::uint32_t>(data.size())};
                if (at + 4 <= data.size()) std::memcpy(data.data() + at, sizes + below(9), 4);
                break;
            }
            default:
                for (std::size_t i = at; i < data.size(); ++i) data[i] = static_cast<u8>(random_bits());
        }
    }
}

// A codec and a tensor with its base.
struct Subject {
    Codec codec;
    std::size_t n;
    std::vector<u8> now, before;

    explicit Subject(int which) {
        codec = {which, 1u << below(4), below(2) == 0, below(2) == 0, static_cast<perdure::UlpKind>(below(3))};
        n = 1 + below(below(50) == 0 ? 3000 : 500);
        const bool blocks = which == 2 && below(100) == 0;  // more than one, which planes of 4 bytes have soonest
        if (blocks) {
            codec.width = 4;
            n = (std::size_t{1} << 15) * (1 + below(3)) + below(300);
        }
        const bool hot = which == 1 && below(20) == 0;  // literals enough to be coded together
        if (hot) {
            codec.kind = static_cast<perdure::UlpKind>(below(2));
            n = 3000 + below(1500);
        }
        now.resize(n * codec.itemsize());
        before.resize(now.size());
        const unsigned spread = blocks ? 4 : hot ? 2u << below(3) : 1u << below(9);
        const unsigned rarely = 1 + static_cast<unsigned>(below(hot ? 2 : 20));
        for (std::size_t i = 0; i < now.size(); ++i) {
            before[i] = static_cast<u8>(random_bits() % spread + 60);
            now[i] = below(rarely) == 0 ? static_cast<u8>(before[i] + random_bits() % spread) : before[i];
        }
    }
};

constexpr int kCasesATile = 12;
const char* const kCodecs[] = {"mask", "ulp", "planes"};

// Whether `back` is `x` within the error of `value_bits`, with the same signs and zeros, and literals as they were.
bool near(std::uint32_t x, std::uint32_t back, unsigned value_bits) {
    const std::uint32_t size = x & 0x7fffffff, other = back & 0x7fffffff, half = 1u << (22 - value_bits);
    if ((x ^ back) >> 31 != 0) return false;
    if (size < 0x00800000 || size >= 0x7f800000) return size == other;
    return (size > other ? size - other : other - size) <= half;
}

// The lossy codec: what it wrote comes back near, what was altered is refused or decoded within its memory.
bool fuzz_cluster(long cases, const std::vector<perdure::Simd>& levels) {
    std::vector<u8> good;
    std::vector<std::uint32_t> x;
    unsigned value_bits = 8;
    for (long i = 0; i < cases; ++i) {
        perdure::use_simd(levels[below(levels.size())]);
        if (i % 8 == 0) {
            x.resize(1 + below(below(50) == 0 ? 3000 : 300));
            value_bits = 4 + static_cast<unsigned>(below(5));
            const unsigned octaves = 1u << below(9), odd = 1 + static_cast<unsigned>(below(100)), sign = below(2) == 0;
            for (std::uint32_t& word : x) {
                word = (static_cast<std::uint32_t>(100 + below(octaves)) << 23 ^ (random_bits() & 0x7fffff)) & 0x7fffffff;
                if (below(odd) == 0) word = below(2) == 0 ? 0 : static_cast<std::uint32_t>(random_bits()) >> below(32);
                if (sign != 0) word ^= static_cast<std::uint32_t>(random_bits()) & 0x80000000;
            }
            good.resize(perdure::cluster_room(x.size()));
            good.resize(perdure::cluster_encode(reinterpret_cast<const u8*>(x.data()), x.size(), value_bits, good.data()));
        }
        std::vector<u8> bytes = good;
        if (i % 8 != 0) alter_anywhere(bytes);
        const Exact in(bytes);
        const Exact out(4 * x.size());
        const bool ok = perdure::cluster_decode(in.at, in.size, x.size(), out.at);
        if (i % 8 != 0) continue;
        bool right = ok;
        for (std::size_t j = 0; right && j < x.size(); ++j) {
            std::uint32_t back;
            std::memcpy(&back, out.at + 4 * j, 4);
            right = near(x[j], back, value_bits);
        }
        if (!right) {
            std::fprintf(stderr, "case %ld: cluster does not come back near what it was\n", i);
            return false;
        }
    }
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    const long cases = argc > 1 ? std::atol(argv[1]) : 1000;
    random_bits.seed(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
    const std::vector<perdure::Simd> levels = perdure::simd_levels();
    long tried[3][3] = {}, accepted[3][3] = {}, done = 0;
    for (int tile = 0; done < cases; ++tile) {
        const Subject subject(tile % 3);
        const Codec& codec = subject.codec;
        perdure::use_simd(levels[below(levels.size())]);
        const std::vector<u8> good = codec.encode(subject.now.data(), subject.before.data(), subject.n);
        const fuzz::Parts parts = codec.parts(good, subject.n);
        if (fuzz::joined(parts) != good) {
            std::fprintf(stderr, "tile %d: the parts of codec %s are not its tile\n", tile, kCodecs[codec.which]);
            return 1;
        }
        const Exact base(subject.before);
        for (int i = 0; i < kCasesATile && done < cases; ++i, ++done) {
            const bool altered = i >= static_cast<int>(levels.size());
            const perdure::Simd level = levels[static_cast<std::size_t>(i) % levels.size()];
            std::vector<u8> bytes = good;
            if (altered && below(3) != 0) {
                fuzz::Parts other = parts;
                fuzz::alter(other, random_bits);
                bytes = fuzz::joined(other);
            }
            if (altered && bytes == good) alter_anywhere(bytes);
            perdure::use_simd(level);
            const Exact in(bytes), out(subject.now.size());
            const bool ok = codec.decode(in, base, subject.n, out.at);
            ++tried[codec.which][static_cast<int>(level)];
            accepted[codec.which][static_cast<int>(level)] += ok;
            if (!altered && (!ok || std::memcmp(out.at, subject.now.data(), out.size) != 0)) {
                std::fprintf(stderr, "tile %d: codec %s does not give back its own\n", tile, kCodecs[codec.which]);
                return 1;
            }
        }
    }
    if (!fuzz_cluster(cases / 4, levels)) return 1;
    for (int which = 0; which < 3; ++which) {
        for (const perdure::Simd level : levels) {
            const int at = static_cast<int>(level);
            std::printf("%s %s %ld cases %ld accepted\n", kCodecs[which], std::string(perdure::name(level)).c_str(),
                        tried[which][at], accepted[which][at]);
        }
    }
}
