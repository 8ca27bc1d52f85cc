#include "../simd.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "checks.h"

namespace perdure::bind {

namespace {

std::vector<std::string> level_names() {
    std::vector<std::string> names;
    for (const Simd level : simd_levels()) names.emplace_back(name(level));
    return names;
}

void use_named(const std::string& wanted) {
    for (const Simd level : simd_levels()) {
        if (name(level) == wanted) return use_simd(level);
    }
    throw nb::value_error("this processor has no such level; see simd_levels()");
}

}  // namespace

void add_simd(nb::module_& module) {
    module.def("simd_levels", &level_names, "The instruction levels that this processor can run, slowest first.");
    module.def("simd", [] { return std::string(name(simd())); }, "The instruction level in use.");
    module.def("use_simd", &use_named, nb::arg("level"),
               "Use another level from now on, in this process; all of them give the same bytes.");
}

}  // namespace perdure::bind
