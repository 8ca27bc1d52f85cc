#include "rans_bytes.h"

#include <cstring>

namespace perdure::rans {

ByteReader::ByteReader(const Model& model, const Ranges& ranges, const Streams& in)
    : has_bits(model.has_bits()),
      symbols(in.symbols, in.n_symbols),
      raws(in.raws, in.n_raws),
      literal(in.literals),
      literals_end(in.literals + in.n_literals) {
    std::memset(class_of, 0, sizeof class_of);
    for (std::size_t kind = 0; kind < kClasses; ++kind) {
        std::memset(class_of + model.start[kind], static_cast<int>(kind), model.freq[kind]);
    }
    std::memcpy(freq, model.freq, sizeof freq);
    std::memcpy(start, model.start, sizeof start);
    std::memcpy(bits, model.bits, sizeof bits);
    std::memcpy(first, ranges.first, sizeof first);
    std::memcpy(states, in.states, sizeof states);
}

bool ByteReader::near_begin(const u8* symbol, const u8* raw) {
    symbols.at = symbol;
    raws.at = raw;
    return symbols.ready() && raws.ready();
}

bool ByteReader::done() const {
    u8 wrong = 0;
    for (std::size_t i = 0; i < kStateBytes; ++i) wrong |= states[i] ^ static_cast<u8>(i / kLanes & 1);
    return wrong == 0 && symbols.done() && raws.done() && literal == literals_end;
}

}  // namespace perdure::rans
