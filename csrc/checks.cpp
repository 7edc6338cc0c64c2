#include "checks.h"

#include "parallel.h"
#include "simd.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <type_traits>

namespace khop {
namespace {

// Checks whole blocks without a branch, then searches the first failing block.
template <class Id>
struct FirstOutside {
  static KHOP_INLINE void run(const Id* ids, std::int64_t begin, std::int64_t end, std::int64_t limit, std::int64_t* found) {
    using Unsigned = std::make_unsigned_t<Id>;
    constexpr std::int64_t block = 1024;
    // No id is greater, and the highest bit means a negative id.
    const auto most = std::min(static_cast<std::uint64_t>(limit), std::uint64_t{std::numeric_limits<Id>::max()} + 1);
    *found = end;
    for (std::int64_t start = begin; start < end; start += block) {
      const std::int64_t stop = std::min(start + block, end);
      Unsigned largest = 0;  // a negative id is a large unsigned one
      for (std::int64_t i = start; i < stop; ++i) largest = std::max(largest, static_cast<Unsigned>(ids[i]));
      if (largest < most) continue;
      *found = std::find_if(ids + start, ids + stop, [limit](Id id) { return id < 0 || id >= limit; }) - ids;
      return;
    }
  }
};

}  // namespace

template <class Id>
std::int64_t first_outside(std::span<const Id> ids, std::int64_t limit, int threads) {
  const auto size = static_cast<std::int64_t>(ids.size());
  if (limit <= 0) return size > 0 ? 0 : -1;
  std::atomic<std::int64_t> first = size;
  parallel_for(threads, size, 1 << 18, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t found = end;
    run_widest<FirstOutside<Id>>(ids.data(), begin, end, limit, &found);
    if (found == end) return;
    for (std::int64_t seen = first; found < seen && !first.compare_exchange_weak(seen, found);) {
    }
  });
  return first == size ? -1 : first.load();
}

template std::int64_t first_outside(std::span<const std::int32_t>, std::int64_t, int);
template std::int64_t first_outside(std::span<const std::int64_t>, std::int64_t, int);

std::int64_t first_wrong_offset(std::span<const std::int64_t> indptr, std::int64_t edges) {
  if (indptr.empty() || indptr[0] != 0) return 0;
  const std::size_t last = indptr.size() - 1;
  for (std::size_t row = 0; row < last; ++row) {
    if (indptr[row + 1] < indptr[row]) return static_cast<std::int64_t>(row) + 1;
  }
  return indptr[last] == edges ? -1 : static_cast<std::int64_t>(last);
}

void check_rows(std::span<const std::int64_t> indptr, std::int64_t edges) {
  const std::int64_t at = first_wrong_offset(indptr, edges);
  if (at < 0) return;
  if (indptr.empty()) throw DamagedArray("indptr", "has no entry, not even the 0 that it begins with");
  const std::int64_t row = std::max<std::int64_t>(at - 1, 0);
  const auto entry = [&](std::int64_t i) { return std::to_string(indptr[static_cast<std::size_t>(i)]); };
  const std::string of_row = at == 0 ? "begins at " + entry(0) : "begins at " + entry(row) + " and ends at " + entry(at);
  throw DamagedArray("indptr", "row " + std::to_string(row) + " " + of_row + ": rows must begin at 0, never descend, and end at " +
                                   std::to_string(edges) + ", the number of edges");
}

void check_offsets(std::span<const std::int64_t> offsets, std::int64_t entries, const char* name) {
  const std::int64_t at = first_wrong_offset(offsets, entries);
  if (at < 0) return;
  if (offsets.empty()) throw std::invalid_argument(std::string(name) + " has no entry: it must begin with 0");
  throw std::invalid_argument(std::string(name) + " has " + std::to_string(offsets[static_cast<std::size_t>(at)]) + " at position " +
                              std::to_string(at) + ": it must begin with 0, never fall and end with the number of edges, " +
                              std::to_string(entries));
}

template <class Id>
void check_ids(std::span<const Id> ids, std::int64_t limit, const char* name, int threads) {
  const std::int64_t at = first_outside(ids, limit, threads);
  if (at < 0) return;
  throw std::invalid_argument(std::string(name) + " id " + std::to_string(ids[static_cast<std::size_t>(at)]) + " at position " +
                              std::to_string(at) + ": must be in [0, " + std::to_string(limit) + ")");
}

template void check_ids(std::span<const std::int32_t>, std::int64_t, const char*, int);
template void check_ids(std::span<const std::int64_t>, std::int64_t, const char*, int);

void check_size(std::size_t given, std::size_t wanted, const char* name) {
  if (given == wanted) return;
  throw std::invalid_argument(std::string(name) + " has " + std::to_string(given) + " entries: must have " + std::to_string(wanted));
}

}  // namespace khop
