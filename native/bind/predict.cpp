#include "../predict.h"

#include <nanobind/stl/vector.h>

#include <memory>
#include <vector>

#include "checks.h"

namespace perdure::bind {

namespace {

using Out = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr std::size_t kMostTerms = 8;

Real checked_real(std::int64_t width) {
    if (width != 4 && width != 8) throw nb::value_error("predictions are of float32 (4 bytes) or float64 (8)");
    return width == 4 ? Real::float32 : Real::float64;
}

// How many elements `out` has, of `width` bytes.
std::size_t checked_size(const Out& out, std::size_t width) {
    if (out.shape(0) % width != 0) throw nb::value_error("out is no whole number of elements");
    return out.shape(0) / width;
}

// Raise ValueError unless `input` has `nbytes` bytes, none of them in `out`.
void check_input(const Bytes& input, std::size_t nbytes, const Out& out) {
    if (input.size() != nbytes) throw nb::value_error("every input has as many elements as out");
    const auto at = reinterpret_cast<std::uint64_t>(input.data()), to = reinterpret_cast<std::uint64_t>(out.data());
    if (at < to + out.shape(0) && to < at + nbytes) throw nb::value_error("out overlaps what is read");
}

void update_checked(nb::object x, double keep, nb::object moments, nb::object squares, const std::vector<double>& by,
                    const std::vector<double>& eps, Out out, std::int64_t width) {
    const Real kind = checked_real(width);
    const std::size_t n = checked_size(out, static_cast<std::size_t>(width)), n_terms = nb::len(moments);
    if (n_terms > kMostTerms || nb::len(squares) != n_terms || by.size() != n_terms || eps.size() != n_terms) {
        throw nb::value_error("an update has up to 8 terms, each with a moment, a square or None, a factor and an eps");
    }
    const Bytes old(x);
    check_input(old, out.shape(0), out);
    std::vector<std::unique_ptr<Bytes>> held;
    std::vector<PredictTerm> terms;
    const auto taken = [&](nb::handle object) {
        held.push_back(std::make_unique<Bytes>(object));
        check_input(*held.back(), out.shape(0), out);
        return held.back()->data();
    };
    for (std::size_t i = 0; i < n_terms; ++i) {
        const nb::object moment = moments[i], square = squares[i];
        terms.push_back({taken(moment), square.is_none() ? nullptr : taken(square), by[i], eps[i]});
    }
    nb::gil_scoped_release released;
    predict_update(kind, old.data(), keep, terms.data(), n_terms, n, out.data());
}

void square_checked(nb::object square, nb::object before, nb::object moment, double keep, double fade, double by,
                    double rest, Out out, std::int64_t width) {
    const Real kind = checked_real(width);
    const std::size_t n = checked_size(out, static_cast<std::size_t>(width));
    const Bytes old(square), was(before), is(moment);
    for (const Bytes* input : {&old, &was, &is}) check_input(*input, out.shape(0), out);
    const PredictSquare how{old.data(), was.data(), is.data(), keep, fade, by, rest};
    nb::gil_scoped_release released;
    predict_square(kind, how, n, out.data());
}

void rounding_checked(nb::object x, Out out, std::int64_t width, std::int64_t to) {
    const Real kind = checked_real(width);
    if (to < 0 || to > 2 || (to == 2 && kind == Real::float32)) throw nb::value_error("there is no such rounding");
    const std::size_t n = checked_size(out, to == 2 ? 4 : 2);
    const Bytes from(x);
    check_input(from, n * static_cast<std::size_t>(width), out);
    nb::gil_scoped_release released;
    predict_rounding(kind, static_cast<Narrow>(to), from.data(), n, out.data());
}

}  // namespace

void add_predict(nb::module_& module) {
    module.def("predict_update", &update_checked, nb::arg("x"), nb::arg("keep"), nb::arg("moments"), nb::arg("squares"),
               nb::arg("by"), nb::arg("eps"), nb::arg("out").noconvert(), nb::arg("width"),
               "A tensor after an optimizer's steps. See predict.h.");
    module.def("predict_square", &square_checked, nb::arg("square"), nb::arg("before"), nb::arg("moment"), nb::arg("keep"),
               nb::arg("fade"), nb::arg("by"), nb::arg("rest"), nb::arg("out").noconvert(), nb::arg("width"),
               "A second moment after an optimizer's steps. See predict.h.");
    module.def("predict_rounding", &rounding_checked, nb::arg("x"), nb::arg("out").noconvert(), nb::arg("width"),
               nb::arg("to"), "Elements rounded to a narrower type: 0 bfloat16, 1 float16, 2 float32. See predict.h.");
}

}  // namespace perdure::bind
