// The coder, portable: what every other version must equal.
#include <cstring>

#include "rans_bytes.h"

namespace perdure::rans {

bool Backward::near_begin() {
    if (copied) return at >= begin;
    const auto left = static_cast<std::size_t>(at - begin);
    std::memset(copy, 0, kRound);
    std::memcpy(copy + kRound, begin, left + kSlack);
    begin = copy + kRound;
    at = begin + left;
    copied = true;
    return true;
}

namespace {

struct ClassTable {
    u8 of[256];
    constexpr ClassTable() : of() {
        for (unsigned m = 0; m < 256; ++m) of[m] = class_of(m);
    }
};
constexpr ClassTable kClassOf;

constexpr std::size_t element_of(std::size_t lane) { return (lane >> 1) + 32 * (lane & 1); }

template <unsigned kWidth>
int load(const u8* at) {
    if constexpr (kWidth == 1) return static_cast<std::int8_t>(*at);
    return static_cast<std::int16_t>(at[0] | at[1] << 8);
}

template <unsigned kWidth>
void store(u8* at, int bits) {
    at[0] = static_cast<u8>(bits);
    if constexpr (kWidth == 2) at[1] = static_cast<u8>(bits >> 8);
}

// Sign and magnitude to an integer in the order of the floats, and back: its own inverse. -0 is -1.
template <unsigned kWidth>
int ordered(int bits) {
    return bits < 0 ? bits ^ (kWidth == 1 ? 0x7f : 0x7fff) : bits;
}

template <unsigned kWidth>
u8 context16(int base, const View& view) {
    const int bin = ((base & (kWidth == 1 ? 0x7f : 0x7fff)) >> view.shift) - view.first;
    return view.context[bin < 0 ? 0 : bin > 63 ? 63 : bin];
}

template <unsigned kWidth>
std::size_t classify(const u8* x, const u8* base, std::size_t n, const View& view, u8* index, u8* raw, u8* literals,
                     u32* counts) {
    std::size_t n_literals = 0;
    for (std::size_t group = 0; group < (n + kRound - 1) / kRound * 2; ++group) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const std::size_t i = group * kLanes + element_of(lane);
            const int before = i < n ? load<kWidth>(base + i * kWidth) : 0;
            const int now = i < n ? load<kWidth>(x + i * kWidth) : 0;
            const auto distance = static_cast<std::int16_t>(ordered<kWidth>(now) - ordered<kWidth>(before));
            const int magnitude = distance < 0 ? -static_cast<int>(distance) : distance;
            const u8 kind = magnitude > 255 ? kEscape : kClassOf.of[magnitude];
            const u8 cell = context16<kWidth>(before, view) + kind;
            index[group * kLanes + lane] = cell;
            raw[group * kLanes + lane] =
                kind == kEscape ? 0 : static_cast<u8>((magnitude - kFirst[kind]) << 1 | (distance < 0));
            ++counts[cell];
        }
        for (std::size_t j = 0; j < kLanes; ++j) {  // literals lie in the order of elements, not of lanes
            const std::size_t lane = (j & 31) << 1 | j >> 5;
            if ((index[group * kLanes + lane] & 15) == kEscape) {
                store<kWidth>(literals + kWidth * n_literals++, load<kWidth>(x + (group * kLanes + j) * kWidth));
            }
        }
    }
    return n_literals;
}

std::size_t ulp_classify(const u8* x, const u8* base, std::size_t n, const View& view, unsigned, u8* index, u8* raw,
                         u8* literals, u32* counts) {
    std::memset(counts, 0, kCells * sizeof *counts);
    return view.width == 1 ? classify<1>(x, base, n, view, index, raw, literals, counts)
                           : classify<2>(x, base, n, view, index, raw, literals, counts);
}

std::size_t byte_classify(const u8* bytes, std::size_t n, const Ranges& ranges, u8* index, u8* raw, u8* literals,
                          u32* counts) {
    std::memset(counts, 0, kCells * sizeof *counts);
    std::size_t n_literals = 0;
    for (std::size_t i = 0; i < (n + kRound - 1) / kRound * kRound; ++i) {
        const u8 value = i < n ? bytes[i] : ranges.first[0];
        index[i] = ranges.of[value];
        literals[n_literals] = value;
        n_literals += index[i] == kEscape;
        raw[i] = static_cast<u8>(index[i] == kEscape ? 0 : value - ranges.first[index[i]]);
        ++counts[index[i]];
    }
    return n_literals;
}

void encode(const u8* index, const u8* raw, std::size_t n_padded, const Model& model, Ahead, u8* symbols, u8* raws,
            u8* states, std::size_t& n_symbols, std::size_t& n_raws) {
    u16 x[kRound];
    for (u16& state : x) state = 256;
    u8 *symbol_at = symbols, *raw_at = raws;
    for (std::size_t group = n_padded / kLanes; group-- > 0;) {
        u16* set = x + (group & 1) * kLanes;
        const u8 *cells = index + group * kLanes, *values = raw + group * kLanes;
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const unsigned bits = model.bits[cells[lane] & 15];
            if (set[lane] >> 8 > 0xff >> bits) {
                *raw_at++ = static_cast<u8>(set[lane]);
                set[lane] >>= 8;
            }
            set[lane] = static_cast<u16>(set[lane] << bits | values[lane]);
        }
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const unsigned freq = model.freq[cells[lane]];
            if (set[lane] >> 8 >= static_cast<int>(freq)) {
                *symbol_at++ = static_cast<u8>(set[lane]);
                set[lane] >>= 8;
            }
            set[lane] = static_cast<u16>((set[lane] / freq << 8) + set[lane] % freq + model.start[cells[lane]]);
        }
    }
    for (std::size_t lane = 0; lane < kRound; ++lane) {
        u8* set = states + (lane / kLanes) * kRound + lane % kLanes;
        set[0] = static_cast<u8>(x[lane]);
        set[kLanes] = static_cast<u8>(x[lane] >> 8);
    }
    n_symbols = static_cast<std::size_t>(symbol_at - symbols);
    n_raws = static_cast<std::size_t>(raw_at - raws);
}

// Decodes group after group; both codecs do this and differ in what they make of a class and its bits.
class Decoder {
public:
    Decoder(const Model& model, const Streams& in)
        : model_(model), symbols_(in.symbols, in.n_symbols), raws_(in.raws, in.n_raws) {
        std::memset(class_of_, 0, sizeof class_of_);
        for (std::size_t cell = 0; cell < kCells; ++cell) {
            std::memset(class_of_[cell / kClasses] + model.start[cell], static_cast<int>(cell % kClasses), model.freq[cell]);
        }
        for (std::size_t lane = 0; lane < kRound; ++lane) {
            const u8* set = in.states + (lane / kLanes) * kRound + lane % kLanes;
            x_[lane] = static_cast<u16>(set[0] | set[kLanes] << 8);
        }
    }

    // Before every second group.
    bool ready() { return symbols_.ready() && raws_.ready(); }

    // `cells` holds 16 * context on entry; the class is added to it.
    void group(std::size_t group, u8* cells, u8* bits) {
        u16* set = x_ + (group & 1) * kLanes;
        std::size_t missing = 0;
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const unsigned slot = set[lane] & 0xff;
            cells[lane] += class_of_[cells[lane] >> 4][slot];
            set[lane] = static_cast<u16>(model_.freq[cells[lane]] * (set[lane] >> 8) + slot - model_.start[cells[lane]]);
            missing += set[lane] < 256;
        }
        fill(set, missing, symbols_);
        missing = 0;
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const unsigned n = model_.bits[cells[lane] & 15];
            bits[lane] = static_cast<u8>(set[lane] & ((1u << n) - 1));
            set[lane] >>= n;
            missing += set[lane] < 256;
        }
        fill(set, missing, raws_);
    }

    // Whether everything was used up and the states are what an encoder starts with.
    bool done() const {
        u16 wrong = 0;
        for (const u16 state : x_) wrong |= state ^ 256;
        return wrong == 0 && symbols_.done() && raws_.done();
    }

private:
    static void fill(u16* set, std::size_t missing, Backward& from) {
        from.at -= missing;
        const u8* at = from.at;
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            if (set[lane] < 256) set[lane] = static_cast<u16>(set[lane] << 8 | *at++);
        }
    }

    const Model& model_;
    Backward symbols_, raws_;
    u16 x_[kRound];
    u8 class_of_[kMaxContexts][256];
};

template <unsigned kWidth>
bool decode(const Model& model, const Streams& in, const u8* base, std::size_t n, const View& view, u8* out) {
    Decoder decoder(model, in);
    std::size_t literal = 0;
    u8 cells[kLanes], bits[kLanes];
    for (std::size_t group = 0; group < (n + kRound - 1) / kRound * 2; ++group) {
        if (group % 2 == 0 && !decoder.ready()) return false;
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const std::size_t i = group * kLanes + element_of(lane);
            cells[lane] = context16<kWidth>(i < n ? load<kWidth>(base + i * kWidth) : 0, view);
        }
        decoder.group(group, cells, bits);
        for (std::size_t j = 0; j < kLanes; ++j) {
            const std::size_t i = group * kLanes + j, lane = (j & 31) << 1 | j >> 5;
            const u8 kind = cells[lane] & 15;
            if (kind == kEscape) {
                if (literal == in.n_literals || i >= n) return false;
                store<kWidth>(out + i * kWidth, load<kWidth>(in.literals + kWidth * literal++));
            } else if (i < n) {
                const int magnitude = kFirst[kind] + (bits[lane] >> 1);
                const int before = ordered<kWidth>(load<kWidth>(base + i * kWidth));
                const auto after = static_cast<std::int16_t>(before + (bits[lane] & 1 ? -magnitude : magnitude));
                store<kWidth>(out + i * kWidth, ordered<kWidth>(after));
            }
        }
    }
    return decoder.done() && literal == in.n_literals;
}

bool ulp_decode(const Model& model, const Streams& in, const u8* base, std::size_t n, const View& view, u8* out) {
    return view.width == 1 ? decode<1>(model, in, base, n, view, out) : decode<2>(model, in, base, n, view, out);
}

// The next group of a reader: classes and raw bits of its lanes.
void group_of(ByteReader& reader, u8* set, u8* kinds, u8* values) {
    const auto fill = [set](Backward& from) {
        std::size_t missing = 0;
        for (std::size_t lane = 0; lane < kLanes; ++lane) missing += set[kLanes + lane] == 0;
        from.at -= missing;
        const u8* at = from.at;
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            if (set[kLanes + lane] != 0) continue;
            set[kLanes + lane] = set[lane];
            set[lane] = *at++;
        }
    };
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const u8 kind = kinds[lane] = reader.class_of[set[lane]];
        const unsigned x = reader.freq[kind] * set[kLanes + lane] + static_cast<u8>(set[lane] - reader.start[kind]);
        set[lane] = static_cast<u8>(x);
        set[kLanes + lane] = static_cast<u8>(x >> 8);
    }
    fill(reader.symbols);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const unsigned n = reader.bits[kinds[lane]], x = set[lane] | set[kLanes + lane] << 8;
        values[lane] = static_cast<u8>(x & ((1u << n) - 1));
        set[lane] = static_cast<u8>(x >> n);
        set[kLanes + lane] = static_cast<u8>(x >> n >> 8);
    }
    fill(reader.raws);
}

bool bytes_of(ByteReader& reader, std::size_t n, u8* out) {
    u8 kinds[kLanes], values[kLanes];
    for (std::size_t group = 0; group < (n + kRound - 1) / kRound * 2; ++group) {
        if (group % 2 == 0 && !(reader.symbols.ready() && reader.raws.ready())) return false;
        group_of(reader, reader.states + (group & 1) * kRound, kinds, values);
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            u8 value = static_cast<u8>(reader.first[kinds[lane]] + values[lane]);
            if (kinds[lane] == kEscape) {
                if (reader.literal == reader.literals_end) return false;
                value = *reader.literal++;
            }
            if (group * kLanes + lane < n) out[group * kLanes + lane] = value;
        }
    }
    return true;
}

bool byte_decode(ByteReader* const* readers, unsigned count, std::size_t n, Ahead, u8* const* out) {
    for (unsigned i = 0; i < count; ++i) {
        if (!bytes_of(*readers[i], n, out[i])) return false;
    }
    return true;
}

}  // namespace

const Kernels kScalar{ulp_classify, encode, ulp_decode, byte_classify, byte_decode};

}  // namespace perdure::rans
