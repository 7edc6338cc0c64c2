#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace khop {
namespace {

#ifdef MADV_HUGEPAGE
constexpr int kHugePages = MADV_HUGEPAGE;
#else
constexpr int kHugePages = MADV_NORMAL;
#endif

// A kernel that refuses changes nothing.
void advise(void* data, std::size_t bytes, int advice) noexcept { static_cast<void>(madvise(data, bytes, advice)); }

char* map_pages(std::size_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(data);
}

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

std::size_t to_next(const void* data, std::size_t unit) { return (unit - reinterpret_cast<std::uintptr_t>(data) % unit) % unit; }

}  // namespace

void* map_memory(std::size_t bytes) {
  bytes = std::max(kPageBytes, whole_pages(bytes));
  if (bytes < kHugePageBytes) return map_pages(bytes);
  // Only an aligned huge page can be huge: map one more and give back what lies before and behind.
  char* const base = map_pages(bytes + kHugePageBytes);
  const std::size_t before = to_next(base, kHugePageBytes), behind = kHugePageBytes - before;
  char* const data = base + before;
  if (before > 0) munmap(base, before);
  munmap(data + bytes, behind);
  advise(data, bytes, kHugePages);
  return data;
}

void unmap_memory(void* data, std::size_t bytes) noexcept {
  munmap(data, std::max(kPageBytes, whole_pages(bytes)));
}

void expect_random_access(const void* data, std::size_t bytes) noexcept {
  const std::size_t before = to_next(data, kPageBytes);
  if (bytes < before + kHugePageBytes) return;
  char* const pages = static_cast<char*>(const_cast<void*>(data)) + before;
  const std::size_t whole = (bytes - before) / kPageBytes * kPageBytes;
  advise(pages, whole, kHugePages);
  // One fault after another would read a file in the order of the accesses, 2 MiB each.
  const auto memory_pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
  if (whole / kPageBytes < memory_pages / 4) advise(pages, whole, MADV_WILLNEED);
}

}  // namespace khop
