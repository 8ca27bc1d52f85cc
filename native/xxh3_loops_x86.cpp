#include "xxh3_loop.h"

namespace perdure::xxh3 {

const Loop& loop(Simd level) {
    switch (level) {
        case Simd::avx512: return kAvx512Loop;
        case Simd::avx2: return kAvx2Loop;
        default: return kScalarLoop;
    }
}

}  // namespace perdure::xxh3
