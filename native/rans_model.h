// Counts to the frequencies that a coded block carries, and what they cost. Integers alone, so that every writer decides alike.
#pragma once

#include "rans.h"

namespace perdure::rans {

// log2(n) * 2^16 for n >= 1, within 0.01.
u32 log2_16(u64 n);

// n * log2(n) * 2^16: the entropy of counts that sum to N is n_log_n(N) less those of the counts.
inline u64 n_log_n(u64 n) { return n < 2 ? 0 : n * log2_16(n); }

// Frequencies and starts of each context of `model` from `counts[kCells]`. What occurs gets at least 1, nothing more than 255:
// a class that is alone lends 1 to the next one.
void set_frequencies(Model& model, const u32* counts);

// What coding these counts takes, in bits, headers and states left out.
u64 cost_bits(const Model& model, const u32* counts);

// For each context 16 bits that say which classes occur and a byte for each of those; returns the end.
u8* write_frequencies(const Model& model, u8* out);

// The same back into `model`, whose contexts are set; null if [in, end) holds no such tables.
const u8* read_frequencies(Model& model, const u8* in, const u8* end);

inline void put_u32(u8* at, std::size_t value) {
    for (int i = 0; i < 4; ++i) at[i] = static_cast<u8>(value >> 8 * i);
}
inline std::size_t get_u32(const u8* at) { return at[0] | at[1] << 8 | at[2] << 16 | static_cast<u32>(at[3]) << 24; }

// What one thread needs while it codes a block; made once a thread.
struct Scratch {
    u8 index[kBlock + kSlack];
    u8 raw[kBlock + kSlack];
    u8 symbols[kBlock + kSlack];
    u8 raws[kBlock + kSlack];
    u8 literals[2 * kBlock + 2 * kSlack];
    u8 planes[4 * kBlock + kSlack];

    static Scratch& of_thread();
};

}  // namespace perdure::rans
