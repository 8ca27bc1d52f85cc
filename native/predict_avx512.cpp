// The loops of `predict` with AVX-512.
#include "predict_loops.h"

namespace perdure::predict {

namespace {

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
void update(Real kind, const u8* x, double keep, const PredictTerm* terms, std::size_t n_terms, std::size_t n, u8* out) {
    update_any(kind, x, keep, terms, n_terms, n, out);
}

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
void square(Real kind, const PredictSquare& how, std::size_t n, u8* out) { square_any(kind, how, n, out); }

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
void rounding(Real kind, Narrow to, const u8* x, std::size_t n, u8* out) { rounding_any(kind, to, x, n, out); }

}  // namespace

const Loops kAvx512Loops{update, square, rounding};

}  // namespace perdure::predict
