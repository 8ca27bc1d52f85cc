#include "rans_model.h"

#include <bit>
#include <memory>

namespace perdure::rans {

u32 log2_16(u64 n) {
    const unsigned whole = static_cast<unsigned>(std::bit_width(n)) - 1;
    const u64 part = whole >= 16 ? (n >> (whole - 16)) & 0xffff : (n << (16 - whole)) & 0xffff;
    const u64 bend = (part * (0x10000 - part) >> 16) * 22544 >> 16;  // 0.344 * part * (1 - part)
    return static_cast<u32>((whole << 16) + part + bend);
}

namespace {

void normalise(const u32* counts, u8* freq) {
    u64 total = 0;
    unsigned kinds = 0, last = 0;
    for (unsigned i = 0; i < kClasses; ++i) {
        total += counts[i];
        kinds += counts[i] != 0;
        if (counts[i] != 0) last = i;
        freq[i] = 0;
    }
    if (kinds == 0) return;
    if (kinds == 1) {
        freq[last] = 255;
        freq[(last + 1) % kClasses] = 1;
        return;
    }
    int sum = 0;
    for (unsigned i = 0; i < kClasses; ++i) {
        if (counts[i] == 0) continue;
        const u64 share = (u64{counts[i]} * 256 + total / 2) / total;
        freq[i] = static_cast<u8>(share < 1 ? 1 : share > 255 ? 255 : share);
        sum += freq[i];
    }
    while (sum != 256) {  // take from, or give to, the one for which it matters least, or most; the first of equals
        const int step = sum > 256 ? -1 : 1;
        int best = -1;
        for (int i = 0; i < static_cast<int>(kClasses); ++i) {
            if (counts[i] == 0 || freq[i] == (step < 0 ? 1 : 255)) continue;
            if (best < 0) {
                best = i;
                continue;
            }
            const u64 mine = u64{counts[i]} * static_cast<u64>(2 * freq[best] + step);
            const u64 theirs = u64{counts[best]} * static_cast<u64>(2 * freq[i] + step);
            if (step < 0 ? mine < theirs : mine > theirs) best = i;
        }
        freq[best] = static_cast<u8>(freq[best] + step);
        sum += step;
    }
}

void set_starts(Model& model) {
    for (std::size_t cell = 0; cell < kCells; ++cell) {
        model.start[cell] =
            cell % kClasses == 0 ? 0 : static_cast<u8>(model.start[cell - 1] + model.freq[cell - 1]);
    }
}

}  // namespace

void set_frequencies(Model& model, const u32* counts) {
    for (std::size_t context = 0; context < kMaxContexts; ++context) {
        normalise(counts + context * kClasses, model.freq + context * kClasses);
    }
    set_starts(model);
}

u64 cost_bits(const Model& model, const u32* counts) {
    u64 cost = 0;
    for (std::size_t cell = 0; cell < model.contexts * kClasses; ++cell) {
        if (counts[cell] == 0) continue;
        const u64 each = (8u << 16) - log2_16(model.freq[cell]) + (u64{model.bits[cell % kClasses]} << 16);
        cost += counts[cell] * each;
    }
    return cost >> 16;
}

u8* write_frequencies(const Model& model, u8* out) {
    for (std::size_t context = 0; context < model.contexts; ++context) {
        const u8* freq = model.freq + context * kClasses;
        unsigned present = 0;
        u8* at = out + 2;
        for (std::size_t i = 0; i < kClasses; ++i) {
            if (freq[i] == 0) continue;
            present |= 1u << i;
            *at++ = freq[i];
        }
        out[0] = static_cast<u8>(present);
        out[1] = static_cast<u8>(present >> 8);
        out = at;
    }
    return out;
}

const u8* read_frequencies(Model& model, const u8* in, const u8* end) {
    for (std::size_t context = 0; context < model.contexts; ++context) {
        if (end - in < 2) return nullptr;
        const unsigned present = in[0] | in[1] << 8;
        in += 2;
        if (end - in < std::popcount(present)) return nullptr;
        unsigned sum = 0;
        for (std::size_t i = 0; i < kClasses; ++i) {
            u8& freq = model.freq[context * kClasses + i];
            freq = 0;
            if ((present >> i & 1) == 0) continue;
            freq = *in++;
            if (freq == 0) return nullptr;
            sum += freq;
        }
        if (present != 0 && sum != 256) return nullptr;
    }
    set_starts(model);
    return in;
}

Scratch& Scratch::of_thread() {
    thread_local const std::unique_ptr<Scratch> scratch(new Scratch);
    return *scratch;
}

}  // namespace perdure::rans
