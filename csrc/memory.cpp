#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

namespace khop {
namespace {

#ifdef MADV_HUGEPAGE
constexpr int kHugePages = MADV_HUGEPAGE;
#else
constexpr int kHugePages = MADV_NORMAL;
#endif

// Without effect if the kernel refuses.
void advise(void* data, std::size_t bytes, int advice) noexcept { static_cast<void>(madvise(data, bytes, advice)); }

char* map_pages(std::size_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(data);
}

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

std::size_t to_next(const void* data, std::size_t unit) { return (unit - reinterpret_cast<std::uintptr_t>(data) % unit) % unit; }

std::uintptr_t system_page() {
  static const auto bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// The complete pages within a range of memory.
std::span<char> pages_within(const void* data, std::size_t bytes) {
  const std::size_t before = to_next(data, kPageBytes);
  if (bytes < before + kPageBytes) return {};
  return {static_cast<char*>(const_cast<void*>(data)) + before, (bytes - before) / kPageBytes * kPageBytes};
}

std::uintptr_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

struct SparseRanges {
  std::atomic<std::size_t> count = 0;  // 0 in most processes, which then do not lock
  std::shared_mutex mutex;
  std::map<std::uintptr_t, std::size_t> sizes;  // by address
};

SparseRanges& sparse_ranges() {
  static SparseRanges ranges;
  return ranges;
}

}  // namespace

void* map_memory(std::size_t bytes) {
  bytes = std::max(kPageBytes, whole_pages(bytes));
  if (bytes < kHugePageBytes) return map_pages(bytes);
  // Huge pages must be aligned: map one more and unmap the excess on both sides.
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
  const std::span<char> pages = pages_within(data, bytes);
  if (pages.size() >= kHugePageBytes) advise(pages.data(), pages.size(), kHugePages);
}

void read_in_background(const void* data, std::size_t bytes) noexcept {
  const std::span<char> pages = pages_within(data, bytes);
  if (!pages.empty()) advise(pages.data(), pages.size(), MADV_WILLNEED);
}

void expect_sparse_reads(const void* data, std::size_t bytes) {
  const std::span<char> pages = pages_within(data, bytes);
  if (!pages.empty()) advise(pages.data(), pages.size(), MADV_RANDOM);
  const std::unique_lock lock(sparse_ranges().mutex);
  sparse_ranges().sizes.insert_or_assign(address_of(data), bytes);
  sparse_ranges().count = sparse_ranges().sizes.size();
}

void forget_sparse_reads(const void* data) noexcept {
  const std::unique_lock lock(sparse_ranges().mutex);
  sparse_ranges().sizes.erase(address_of(data));
  sparse_ranges().count = sparse_ranges().sizes.size();
}

bool has_sparse_reads(const void* data) noexcept {
  if (sparse_ranges().count == 0) return false;
  const std::shared_lock lock(sparse_ranges().mutex);
  const auto& sizes = sparse_ranges().sizes;
  const auto after = sizes.upper_bound(address_of(data));
  return after != sizes.begin() && address_of(data) - std::prev(after)->first < std::prev(after)->second;
}

void request_rows(std::span<const std::byte* const> rows, std::int64_t row_bytes) {
  const std::uintptr_t page = system_page();
  std::vector<std::uintptr_t> starts(rows.size());
  std::ranges::transform(rows, starts.begin(), [](const std::byte* row) { return address_of(row); });
  std::ranges::sort(starts);
  for (std::size_t at = 0; at < starts.size();) {
    const std::uintptr_t first = starts[at] / page;
    std::uintptr_t last = first;
    // Rows on adjacent pages are one request.
    for (; at < starts.size() && starts[at] / page <= last + 1; ++at) {
      last = std::max(last, (starts[at] + static_cast<std::uintptr_t>(row_bytes) - 1) / page);
    }
    advise(reinterpret_cast<void*>(first * page), (last - first + 1) * page, MADV_WILLNEED);
  }
}

}  // namespace khop
