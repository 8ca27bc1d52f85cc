#include "predict.h"

#include <cfenv>

#include "predict_levels.h"
#include "simd.h"

namespace perdure {

namespace {

// The calling thread may flush subnormals or round in another way (`torch.set_flush_denormal`); predictions must not.
class DefaultFloats {
public:
    DefaultFloats() {
        std::fegetenv(&before_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultFloats() { std::fesetenv(&before_); }
    DefaultFloats(const DefaultFloats&) = delete;
    DefaultFloats& operator=(const DefaultFloats&) = delete;

private:
    std::fenv_t before_;
};

}  // namespace

void predict_update(Real kind, const std::uint8_t* x, double keep, const PredictTerm* terms, std::size_t n_terms,
                    std::size_t n, std::uint8_t* out) {
    const DefaultFloats floats;
    predict::loops(simd()).update(kind, x, keep, terms, n_terms, n, out);
}

void predict_square(Real kind, const PredictSquare& how, std::size_t n, std::uint8_t* out) {
    const DefaultFloats floats;
    predict::loops(simd()).square(kind, how, n, out);
}

void predict_rounding(Real kind, Narrow to, const std::uint8_t* x, std::size_t n, std::uint8_t* out) {
    const DefaultFloats floats;
    predict::loops(simd()).rounding(kind, to, x, n, out);
}

}  // namespace perdure
