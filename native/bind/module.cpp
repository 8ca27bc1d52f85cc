// perdure._native: checks arguments, releases the interpreter's lock, calls the kernels.
#include "checks.h"

NB_MODULE(_native, module) {
    module.doc() = "C++ kernels. Call them through perdure.shm, perdure.codec, perdure.state and perdure.store, which have a twin for each.";
    perdure::bind::add_codec(module);
    perdure::bind::add_copy(module);
    perdure::bind::add_digest(module);
    perdure::bind::add_io(module);
    perdure::bind::add_predict(module);
    perdure::bind::add_simd(module);
}
