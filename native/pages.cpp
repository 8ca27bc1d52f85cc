#include "pages.h"

#include <sys/mman.h>

#include "file.h"

namespace perdure {

namespace {

constexpr std::size_t kHugeBytes = std::size_t{2} << 20;

}  // namespace

void Unmap::operator()(std::uint8_t* at) const { ::munmap(at, nbytes); }

Pages make_pages(std::size_t nbytes) {
    const std::size_t whole = (nbytes + kHugeBytes - 1) / kHugeBytes * kHugeBytes;
    void* const found = ::mmap(nullptr, whole + kHugeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) return {};
    auto* const start = static_cast<std::uint8_t*>(found);
    const std::size_t before = -reinterpret_cast<std::uintptr_t>(start) % kHugeBytes;
    if (before > 0) ::munmap(start, before);
    if (before < kHugeBytes) ::munmap(start + before + whole, kHugeBytes - before);
    Pages pages{start + before, Unmap{whole}};
    if (!keep_from_children(pages.get(), whole)) return {};
    ask_for_huge_pages(pages.get(), nbytes / kHugeBytes * kHugeBytes);  // a rest would be cleared whole, for little
    return pages;
}

}  // namespace perdure
