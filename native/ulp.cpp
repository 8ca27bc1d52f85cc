#include "ulp.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "planes.h"
#include "rans_model.h"

namespace perdure {

using namespace rans;

namespace {

enum Mode : u8 { kSame = 0, kRaw = 1, kCoded = 2 };

constexpr std::size_t kHeader = 1 + 3 * 4;         // of a coded block: mode and sizes
constexpr std::size_t kMaxTables = kMaxContexts * (2 + kClasses);
constexpr std::size_t kSamples = 128;              // groups that are looked at to choose contexts
constexpr std::size_t kMaxRuns = 65;               // runs of bins: each holds something, but for the last one
constexpr std::size_t kSoon = 16;                  // groups that are asked for before they are looked at
constexpr std::size_t kMinShare = 1024;            // of the sample at least so small a part makes a run of bins
constexpr u64 kLarge = 91;
constexpr u64 kContextBits = 18 * 8;               // what a context's table takes in each block
constexpr u8 kTogether = 0x80;                     // with the number of contexts: the literals of all blocks lie behind them
constexpr std::size_t kFooter = 2 * 4;             // how many literals, and the size of their tile
constexpr PlanesKind kLiterals{2, true};
constexpr u64 kTogetherShare = 128;                // from one literal in so many elements on, and
constexpr u64 kTogetherLeast = 1024;               // from so many of them on, the literals of a tile are coded together

View view_of(UlpKind kind) {
    switch (kind) {
        case UlpKind::bfloat16: return {2, 7};
        case UlpKind::float16: return {2, 9};
        default: return {1, 1};
    }
}

Model model_of(unsigned contexts) {
    Model model;
    model.contexts = contexts;
    std::copy(kBits, kBits + kClasses, model.bits);
    return model;
}

// Bins at which a new context begins.
struct Thresholds {
    unsigned n = 0;
    u8 at[kMaxContexts - 1] = {};

    void set(View& view) const {
        for (unsigned bin = 0; bin < 64; ++bin) {
            unsigned context = 0;
            while (context < n && at[context] <= bin) ++context;
            view.context[bin] = static_cast<u8>(16 * context);
        }
    }
};

// The literals of all blocks of a tile, on their way to or from `planes`; grows once. Nothing there: they lie in their blocks.
struct Literals {
    std::vector<u8> bytes;
    std::size_t at = 0, n = 0;  // elements: how many are used, and how many there are

    static Literals& of_thread() {
        thread_local Literals literals;
        return literals;
    }
    // Kernels read further than the literals that they take: by a round's.
    void begin(std::size_t count) {
        at = 0;
        n = count;
        if (bytes.size() < 2 * n + kStateBytes + kSlack) bytes.resize(2 * n + kStateBytes + kSlack);
    }
    u8* next() { return bytes.data() + 2 * at; }
};

struct ClassTable {
    u8 of[256];
    constexpr ClassTable() : of() {
        for (unsigned m = 0; m < 256; ++m) of[m] = class_of(m);
    }
};
constexpr ClassTable kClassOf;

int ordered(int bits, bool wide) {
    const int sign = wide ? 0x8000 : 0x80;
    return bits & sign ? -1 - (bits & (sign - 1)) : bits;
}

// Look at a sample and choose where contexts begin, so that the sample takes the fewest bits; sets `view.first` too. More than
// `contexts` are tried, up to `most`, only while the sample takes more than kLarge parts of 100 of what one context takes.
// `together`: whether literals are so many that they are worth coding.
Thresholds choose(View& view, const u8* x, const u8* base, std::size_t n, unsigned contexts, unsigned most, bool& together) {
    const bool wide = view.width == 2;
    const std::size_t groups = n / kLanes, samples = std::min(groups, kSamples);
    static thread_local u32 seen[256][kClasses];
    std::memset(seen, 0, sizeof seen);
    unsigned highest = 0;
    u64 rest = 0;  // what classes do not tell: raw bits and literals
    u64 escapes = 0;
    for (std::size_t s = 0; s < samples; ++s) {
        const std::size_t start = s * groups / samples * kLanes, soon = (s + kSoon) * groups / samples * kLanes * view.width;
        for (std::size_t line = 0; line < kLanes * view.width; line += 64) {
            __builtin_prefetch(x + soon + line);
            __builtin_prefetch(base + soon + line);
        }
        for (std::size_t i = start; i < start + kLanes; ++i) {
            const int now = wide ? x[2 * i] | x[2 * i + 1] << 8 : x[i];
            const int before = wide ? base[2 * i] | base[2 * i + 1] << 8 : base[i];
            const auto distance = static_cast<std::int16_t>(ordered(now, wide) - ordered(before, wide));
            const unsigned magnitude = static_cast<unsigned>(distance < 0 ? -distance : distance);
            const unsigned kind = magnitude > 255 ? kEscape : kClassOf.of[magnitude];
            const unsigned bin = static_cast<unsigned>(before & (wide ? 0x7fff : 0x7f)) >> view.shift;
            ++seen[bin][kind];
            escapes += kind == kEscape;
            rest += kind == kEscape ? 8 * view.width : kBits[kind];
            highest = std::max(highest, bin);
        }
    }
    view.first = static_cast<u8>(highest > 63 ? highest - 63 : 0);
    const u64 sampled = samples * kLanes;
    together = escapes != 0 && escapes * kTogetherShare >= sampled && escapes * n >= kTogetherLeast * sampled;
    Thresholds chosen;
    if (samples == 0 || most < 2) return chosen;

    // Runs of bins, for most of them hold little or nothing: sums[r] is over all runs before r.
    const u64 enough = std::max<u64>(1, samples * kLanes / kMinShare);
    u32 sums[kMaxRuns + 1][kClasses + 1] = {};
    u8 begins[kMaxRuns + 1] = {};
    unsigned runs = 0;
    u32 open[kClasses + 1] = {};
    for (unsigned bin = 0; bin < 256; ++bin) {
        for (unsigned k = 0; k < kClasses; ++k) {
            open[k] += seen[bin][k];
            open[kClasses] += seen[bin][k];
        }
        if (open[kClasses] < enough && bin != 255) continue;
        if (bin < view.first && bin != 255) continue;  // bins below the first count as the first
        for (unsigned k = 0; k <= kClasses; ++k) sums[runs + 1][k] = sums[runs][k] + open[k];
        ++runs;
        begins[runs] = static_cast<u8>(std::min(63, static_cast<int>(bin) + 1 - view.first));
        std::memset(open, 0, sizeof open);
    }
    static thread_local u64 cost[kMaxRuns + 1][kMaxRuns + 1];
    for (unsigned from = 0; from < runs; ++from) {
        for (unsigned to = from + 1; to <= runs; ++to) {
            u64 bits = n_log_n(sums[to][kClasses] - sums[from][kClasses]);
            for (unsigned k = 0; k < kClasses; ++k) bits -= std::min(bits, n_log_n(sums[to][k] - sums[from][k]));
            cost[from][to] = bits;
        }
    }
    // best[c][to]: the fewest bits of the runs before `to` in c + 1 contexts; from[c][to]: where the last of them begins.
    u64 best[kMaxContexts][kMaxRuns + 1];
    u8 from[kMaxContexts][kMaxRuns + 1] = {};
    const u64 blocks = (n + kBlock - 1) / kBlock;
    const u64 each = (kContextBits * blocks * (samples * kLanes) << 16) / n;
    u64 fewest = 0;
    unsigned used = 1;
    for (unsigned c = 0; c < std::min(most, runs); ++c) {
        if (c >= contexts && 100 * (fewest + (rest << 16)) <= kLarge * (best[0][runs] + (rest << 16))) break;
        for (unsigned to = c + 1; to <= runs; ++to) {
            if (c == 0) {
                best[0][to] = cost[0][to];
                continue;
            }
            best[c][to] = ~u64{0};
            for (unsigned middle = c; middle < to; ++middle) {
                const u64 bits = best[c - 1][middle] + cost[middle][to];
                if (bits < best[c][to]) {
                    best[c][to] = bits;
                    from[c][to] = static_cast<u8>(middle);
                }
            }
        }
        const u64 bits = best[c][runs] + each * (c + 1);
        if (c == 0 || bits < fewest) {
            fewest = bits;
            used = c + 1;
        }
    }
    chosen.n = used - 1;
    for (unsigned c = used - 1, to = runs; c > 0; --c) {
        to = from[c][to];
        chosen.at[c - 1] = begins[to];
    }
    return chosen;
}

u8* encode_block(const Kernels& kernels, const View& view, const u8* x, const u8* base, std::size_t n, unsigned contexts,
                 Literals* together, u8* out) {
    const std::size_t nbytes = n * view.width;
    if (std::memcmp(x, base, nbytes) == 0) {
        *out = kSame;
        return out + 1;
    }
    Scratch& scratch = Scratch::of_thread();
    Ahead ahead;  // the next block
    for (const u8* next : {x + nbytes, base + nbytes}) ahead.add(next, kRound * view.width);
    const std::size_t padded = (n + kRound - 1) / kRound * kRound;
    u32 counts[kCells];
    const std::size_t literals =
        kernels.ulp_classify(x, base, n, view, contexts, scratch.index, scratch.raw, scratch.literals, counts);
    Model model = model_of(contexts);
    set_frequencies(model, counts);
    if (cost_bits(model, counts) / 8 + 2 * literals + kHeader + kStateBytes < nbytes) {
        std::size_t symbols = 0, raws = 0;
        u8 states[kStateBytes];
        kernels.encode(scratch.index, scratch.raw, padded, model, ahead, scratch.symbols, scratch.raws, states, symbols, raws);
        u8 tables[kMaxTables];
        const auto table_bytes = static_cast<std::size_t>(write_frequencies(model, tables) - tables);
        if (kHeader + table_bytes + symbols + raws + 2 * literals + kStateBytes < 1 + nbytes) {
            *out = kCoded;
            put_u32(out + 1, symbols);
            put_u32(out + 5, raws);
            put_u32(out + 9, literals);
            out += kHeader;
            const auto append = [&out](const u8* from, std::size_t size) {
                std::memcpy(out, from, size);
                out += size;
            };
            append(tables, table_bytes);
            append(scratch.symbols, symbols);
            append(scratch.raws, raws);
            if (together != nullptr) {
                std::memcpy(together->next(), scratch.literals, 2 * literals);
                together->at += literals;
            } else {
                append(scratch.literals, 2 * literals);
            }
            append(states, kStateBytes);
            return out;
        }
    }
    *out = kRaw;
    std::memcpy(out + 1, x, nbytes);
    return out + 1 + nbytes;
}

// Where the next block begins, or null.
const u8* decode_block(const Kernels& kernels, const View& view, const u8* in, const u8* end, const u8* base, std::size_t n,
                       unsigned contexts, Literals* together, u8* out) {
    const std::size_t nbytes = n * view.width;
    if (in == end) return nullptr;
    switch (*in) {
        case kSame: std::memcpy(out, base, nbytes); return in + 1;
        case kRaw:
            if (static_cast<std::size_t>(end - in) < 1 + nbytes) return nullptr;
            std::memcpy(out, in + 1, nbytes);
            return in + 1 + nbytes;
        case kCoded: break;
        default: return nullptr;
    }
    if (static_cast<std::size_t>(end - in) < kHeader) return nullptr;
    const std::size_t symbols = get_u32(in + 1), raws = get_u32(in + 5), literals = get_u32(in + 9);
    Model model = model_of(contexts);
    const u8* streams = read_frequencies(model, in + kHeader, end);
    if (streams == nullptr || symbols > kBlock || raws > kBlock || literals > (view.width == 2 ? n : 0)) return nullptr;
    const std::size_t inside = together == nullptr ? 2 * literals : 0;
    if (static_cast<std::size_t>(end - streams) < symbols + raws + inside + kStateBytes) return nullptr;
    const u8 *literals_at = streams + symbols + raws, *states = literals_at + inside;
    if (together != nullptr) {
        if (literals > together->n - together->at) return nullptr;
        literals_at = together->next();
        together->at += literals;
    }
    const Streams parts{streams, streams + symbols, literals_at, states, symbols, raws, literals};
    return kernels.ulp_decode(model, parts, base, n, view, out) ? states + kStateBytes : nullptr;
}

}  // namespace

std::size_t ulp_room(UlpKind kind, std::size_t n) {
    const std::size_t literals = view_of(kind).width == 2 ? planes_room(kLiterals, n) - 2 * n + kFooter : 0;
    return 1 + kMaxContexts + n * view_of(kind).width + (n + kBlock - 1) / kBlock + literals;
}

std::size_t ulp_encode(UlpKind kind, const u8* x, const u8* base, std::size_t n, unsigned contexts, unsigned most, u8* out,
                       PairDigest* seen) {
    const Kernels& kernels = rans::kernels(simd());
    View view = view_of(kind);
    bool many = false;
    const Thresholds thresholds = choose(view, x, base, n, contexts, std::max(contexts, most), many);
    thresholds.set(view);
    Literals* together = many && view.width == 2 ? &Literals::of_thread() : nullptr;
    if (together != nullptr) together->begin(n);
    u8* at = out;
    *at++ = static_cast<u8>(thresholds.n + 1);
    *at++ = view.first;
    for (unsigned i = 0; i < thresholds.n; ++i) *at++ = thresholds.at[i];
    for (std::size_t i = 0; i < n; i += kBlock) {
        const std::size_t byte = i * view.width, here = std::min(kBlock, n - i);
        if (seen != nullptr) seen->reach(byte + here * view.width);
        at = encode_block(kernels, view, x + byte, base + byte, here, thresholds.n + 1, together, at);
    }
    if (together != nullptr && together->at != 0) {
        out[0] |= kTogether;
        const std::size_t size = planes_encode(kLiterals, together->bytes.data(), nullptr, together->at, at);
        put_u32(at + size, together->at);
        put_u32(at + size + 4, size);
        at += size + kFooter;
    }
    return static_cast<std::size_t>(at - out);
}

bool ulp_decode(UlpKind kind, const u8* in, std::size_t nbytes, const u8* base, std::size_t n, u8* out,
                PairDigest* seen) {
    const Kernels& kernels = rans::kernels(simd());
    View view = view_of(kind);
    const u8* end = in + nbytes;
    if (nbytes < 2) return false;
    const unsigned n_contexts = in[0] & ~unsigned{kTogether};
    Literals* together = in[0] & kTogether ? &Literals::of_thread() : nullptr;
    if (n_contexts < 1 || n_contexts > kMaxContexts || nbytes < 1 + n_contexts) return false;
    if (together != nullptr) {
        if (view.width != 2 || nbytes < 1 + n_contexts + kFooter) return false;
        end -= kFooter;
        const std::size_t count = get_u32(end), size = get_u32(end + 4);
        if (count < 1 || count > n || size > static_cast<std::size_t>(end - in) - (1 + n_contexts)) return false;
        end -= size;
        together->begin(count);
        if (!planes_decode(kLiterals, end, size, nullptr, count, together->bytes.data())) return false;
    }
    Thresholds thresholds;
    thresholds.n = n_contexts - 1;
    view.first = in[1];
    if (view.first > (kind == UlpKind::bfloat16 ? 192 : 0)) return false;
    in += 2;
    for (unsigned i = 0; i < thresholds.n; ++i) {
        thresholds.at[i] = *in++;
        if (thresholds.at[i] > 63 || thresholds.at[i] <= (i == 0 ? 0 : thresholds.at[i - 1])) return false;
    }
    thresholds.set(view);
    for (std::size_t i = 0; i < n; i += kBlock) {
        const std::size_t byte = i * view.width, here = std::min(kBlock, n - i);
        in = decode_block(kernels, view, in, end, base + byte, here, thresholds.n + 1, together, out + byte);
        if (in == nullptr) return false;
        if (seen != nullptr) seen->reach(byte + here * view.width);
    }
    return in == end && (together == nullptr || together->at == together->n);
}

}  // namespace perdure
