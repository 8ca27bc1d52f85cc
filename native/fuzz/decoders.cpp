// Hostile bytes for the decoders of `mask`, `ulp` and `planes`, at every instruction level of this processor.
//
// Built with -fsanitize=address,undefined by tests/native/test_decoder_fuzz.py; input and output lie in allocations of exactly their
// size, so one byte too far ends the run. Also checks that what was not altered comes back. Usage: decoders CASES SEED.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "../mask.h"
#include "../planes.h"
#include "../simd.h"
#include "../ulp.h"

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

void alter(std::vector<u8>& data) {
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

}  // namespace

int main(int argc, char** argv) {
    const long cases = argc > 1 ? std::atol(argv[1]) : 1000;
    random_bits.seed(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
    const std::vector<perdure::Simd> levels = perdure::simd_levels();
    std::vector<u8> good;
    Codec codec{};
    std::vector<u8> now, before;
    std::size_t n = 0;
    long accepted = 0;
    for (long i = 0; i < cases; ++i) {
        perdure::use_simd(levels[below(levels.size())]);
        if (i % 8 == 0) {
            codec = {static_cast<int>(below(3)), 1u << below(4), below(2) == 0, below(2) == 0,
                     static_cast<perdure::UlpKind>(below(3))};
            n = 1 + below(below(50) == 0 ? 3000 : 500);
            now.resize(n * codec.itemsize());
            before.resize(now.size());
            const unsigned spread = 1u << below(9), rarely = 1 + static_cast<unsigned>(below(20));
            for (std::size_t j = 0; j < now.size(); ++j) {
                before[j] = static_cast<u8>(random_bits() % spread + 60);
                now[j] = below(rarely) == 0 ? static_cast<u8>(before[j] + random_bits() % spread) : before[j];
            }
            good = codec.encode(now.data(), before.data(), n);
        }
        std::vector<u8> bytes = good;
        if (i % 8 != 0) alter(bytes);
        const Exact in(bytes), base(before);
        const Exact out(now.size());
        const bool ok = codec.decode(in, base, n, out.at);
        accepted += ok;
        if (i % 8 == 0 && (!ok || std::memcmp(out.at, now.data(), now.size()) != 0)) {
            std::fprintf(stderr, "case %ld: codec %d does not give back its own\n", i, codec.which);
            return 1;
        }
    }
    std::printf("%ld cases, %ld accepted\n", cases, accepted);
    return 0;
}
