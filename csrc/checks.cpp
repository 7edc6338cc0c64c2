#include "checks.h"

#include "parallel.h"
#include "simd.h"

#include <algorithm>
#include <atomic>
#include <type_traits>

namespace khop {
namespace {

// Whole blocks without a branch; the place is looked for in the one block that has it.
template <class Id>
struct FirstOutside {
  static KHOP_INLINE void run(const Id* ids, std::int64_t begin, std::int64_t end, std::int64_t limit, std::int64_t* found) {
    using Unsigned = std::make_unsigned_t<Id>;
    constexpr std::int64_t block = 1024;
    *found = end;
    for (std::int64_t start = begin; start < end; start += block) {
      const std::int64_t stop = std::min(start + block, end);
      Unsigned largest = 0;  // a negative id is a large unsigned one
      for (std::int64_t i = start; i < stop; ++i) largest = std::max(largest, static_cast<Unsigned>(ids[i]));
      if (largest < static_cast<std::uint64_t>(limit)) continue;
      *found = std::find_if(ids + start, ids + stop, [limit](Id id) { return id < 0 || id >= limit; }) - ids;
      return;
    }
  }
};

}  // namespace

template <class Id>
std::int64_t first_outside(std::span<const Id> ids, std::int64_t limit, int threads) {
  const auto size = static_cast<std::int64_t>(ids.size());
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
  const auto last = static_cast<std::int64_t>(indptr.size()) - 1;
  if (indptr[0] != 0) return 0;
  for (std::int64_t row = 0; row < last; ++row) {
    if (indptr[row + 1] < indptr[row]) return row + 1;
  }
  return indptr[last] == edges ? -1 : last;
}

}  // namespace khop
