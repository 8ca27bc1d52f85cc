// What an operating system offers for files and memory beyond POSIX: `file_linux.cpp` has it, `file_posix.cpp` has not.
//
// Functions that return an int return 0 or an errno. All of them may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perdure {

// Memory, offsets and sizes of direct (uncached) input and output are multiples of this; no disk in use needs more.
inline constexpr std::size_t kPageBytes = 4096;

inline bool page_aligned(std::uint64_t at) { return at % kPageBytes == 0; }
inline bool page_aligned(const void* at) { return page_aligned(reinterpret_cast<std::uintptr_t>(at)); }

// Let writes and reads through `fd` pass the page cache by, or not; false if the file system cannot. It concerns every
// user of the open file description, so `fd` must be the caller's own.
bool set_direct(int fd, bool on);

// Take the disk space of [offset, offset + nbytes) and make the file that long, so that writes of several blocks at
// once need not wait for one another to make it longer. EOPNOTSUPP where the file system cannot: nothing is lost then.
int reserve(int fd, std::uint64_t offset, std::uint64_t nbytes);

// Start to write what the page cache holds of the range, without waiting. A wish; errors show in fsync.
void start_writeback(int fd, std::uint64_t offset, std::uint64_t nbytes);

// Wish that whole huge pages in [at, at + nbytes) be one page each.
void ask_for_huge_pages(void* at, std::size_t nbytes);

// Leave [at, at + nbytes) out of what a forked child inherits; whether that is so.
bool keep_from_children(void* at, std::size_t nbytes);

enum class Cached { no, yes, unknown };

// Whether the page cache holds at least half of the range, found without reading any of it from the disk.
Cached is_cached(int fd, std::uint64_t offset, std::uint64_t nbytes);

// Write all of `data` at `offset`. Short writes and interruptions go on; a file system that refuses a direct write
// (EINVAL) gets it through the cache instead, which `set_direct` then stays off for.
int write_all(int fd, const std::uint8_t* data, std::size_t nbytes, std::uint64_t offset);

// The file ends before the wanted bytes.
inline constexpr int kCut = -1;

// Read exactly `nbytes` bytes at `offset`: 0, an errno, or kCut.
int read_all(int fd, std::uint8_t* into, std::size_t nbytes, std::uint64_t offset);

}  // namespace perdure
