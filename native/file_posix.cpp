#include <cerrno>

#include "file.h"

namespace perdure {

bool set_direct(int, bool on) { return !on; }

int reserve(int, std::uint64_t, std::uint64_t) { return EOPNOTSUPP; }

void start_writeback(int, std::uint64_t, std::uint64_t) {}

void ask_for_huge_pages(void*, std::size_t) {}

bool keep_from_children(void*, std::size_t) { return true; }  // without direct output it does not matter

Cached is_cached(int, std::uint64_t, std::uint64_t) { return Cached::unknown; }

}  // namespace perdure
