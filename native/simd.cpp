#include "simd.h"

#include <atomic>

namespace perdure {

namespace {

std::atomic<Simd>& chosen() {
    static std::atomic<Simd> level{simd_levels().back()};
    return level;
}

}  // namespace

Simd simd() { return chosen().load(std::memory_order_relaxed); }

void use_simd(Simd level) { chosen().store(level, std::memory_order_relaxed); }

std::string_view name(Simd level) {
    switch (level) {
        case Simd::avx512: return "avx512";
        case Simd::avx2: return "avx2";
        default: return "scalar";
    }
}

}  // namespace perdure
