#include "time_ranges.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "csc.h"
#include "hop_rows.h"
#include "parallel.h"
#include "search.h"
#include "simd.h"

namespace khop {
namespace {

constexpr std::int64_t kBlock = 64;  // rows whose searches go side by side, each waiting for its own memory
constexpr std::int64_t kEarliest = std::numeric_limits<std::int64_t>::min();

// As far as 64 bits go.
std::int64_t saturated(std::int64_t time, std::int64_t shift) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(time, shift, &sum)) return sum;
  return shift < 0 ? kEarliest : std::numeric_limits<std::int64_t>::max();
}

// Where a row's first time above `bound` is: known from the row's ends, or to be searched for from a guess.
struct Search {
  std::int64_t begin, end;
  std::int64_t bound;
  std::int64_t guess;  // or the answer, where begin == end
  double slope;        // positions for each unit of time
};

// Times of a row lie about evenly between its first and its last.
KHOP_INLINE Search begun(const std::int64_t* times, std::int64_t begin, std::int64_t end, std::int64_t bound) {
  if (begin == end || times[end - 1] <= bound) return {end, end, bound, end, 0};
  if (times[begin] > bound) return {begin, begin, bound, begin, 0};
  const double span = static_cast<double>(times[end - 1]) - static_cast<double>(times[begin]);
  const double slope = span > 0 ? static_cast<double>(end - 1 - begin) / span : 0;
  const Search search{begin, end, bound, better_guess(times, begin, end, begin, bound, slope), slope};
  __builtin_prefetch(times + search.guess);
  return search;
}

KHOP_INLINE void improve(const std::int64_t* times, Search& search) {
  if (search.begin == search.end) return;
  search.guess = better_guess(times, search.begin, search.end, search.guess, search.bound, search.slope);
  __builtin_prefetch(times + search.guess);
}

KHOP_INLINE std::int64_t finished(const std::int64_t* times, const Search& search) {
  if (search.begin == search.end) return search.guess;
  return first_above(times, search.begin, search.end, search.guess, search.bound);
}

// Frontier rows [first, last) of one block, at most kBlock of them.
void block_ranges(const Csc<std::int64_t>& graph, const RangeRequest& request, std::int64_t first, std::int64_t last,
                  std::int64_t* ranges) {
  const std::int64_t* const times = graph.indices.data();
  HopRequest whole;
  whole.nodes = request.nodes;
  Row rows[kBlock];
  Search ends[kBlock], begins[kBlock];
  for (std::int64_t i = first; i < last; ++i) {
    const Row row = rows[i - first] = row_at(graph, whole, i);
    if (row.degree == 0) continue;
    __builtin_prefetch(times + row.begin);
    __builtin_prefetch(times + row.begin + row.degree - 1);
  }
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t begin = rows[i - first].begin, end = begin + rows[i - first].degree;
    const std::int64_t until = request.until[static_cast<std::size_t>(i)];
    ends[i - first] = begun(times, begin, end, saturated(until, request.after));
    if (request.before < 0) continue;
    const std::int64_t earliest = saturated(until, -request.before);
    begins[i - first] = earliest == kEarliest ? Search{begin, begin, 0, begin, 0} : begun(times, begin, end, earliest - 1);
  }
  for (std::int64_t i = first; i < last; ++i) {
    improve(times, ends[i - first]);
    if (request.before >= 0) improve(times, begins[i - first]);
  }
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t end = finished(times, ends[i - first]);
    std::int64_t begin = request.before < 0 ? rows[i - first].begin : std::min(end, finished(times, begins[i - first]));
    if (request.most >= 0) begin = std::max(begin, end - request.most);
    ranges[2 * i] = begin;
    ranges[2 * i + 1] = end;
  }
}

// Calls fn(row) for every row, in parts of about as many edges each.
template <class Fn>
void for_each_row(std::span<const std::int64_t> indptr, int threads, const Fn& fn) {
  const auto rows = static_cast<std::int64_t>(indptr.size()) - 1;
  parallel_for(threads, rows, 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) fn(indptr[static_cast<std::size_t>(row)], indptr[static_cast<std::size_t>(row) + 1]);
  });
}

}  // namespace

void time_ranges(std::span<const std::int64_t> indptr, std::span<const std::int64_t> times, const RangeRequest& request,
                 std::int64_t* ranges) {
  const Csc<std::int64_t> graph{indptr, times};
  const auto frontier = static_cast<std::int64_t>(request.nodes.size());
  if (request.until.size() != request.nodes.size()) throw std::invalid_argument("until: one limit per frontier row is needed");
  check_nodes(graph, request.nodes);
  parallel_for(request.threads, frontier, 256, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += kBlock) {
      for (std::int64_t ahead = i + kBlock; ahead < std::min(i + 2 * kBlock, end); ++ahead) {
        const std::int64_t* const row = indptr.data() + request.nodes[static_cast<std::size_t>(ahead)];
        __builtin_prefetch(row);
        __builtin_prefetch(row + 1);
      }
      block_ranges(graph, request, i, std::min(i + kBlock, end), ranges);
    }
  });
}

std::int64_t first_unsorted(std::span<const std::int64_t> indptr, std::span<const std::int64_t> times, int threads) {
  std::atomic<std::int64_t> first = std::numeric_limits<std::int64_t>::max();
  for_each_row(indptr, threads, [&](std::int64_t begin, std::int64_t end) {
    const auto row = times.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    const auto at = std::ranges::is_sorted_until(row);
    if (at == row.end()) return;
    const std::int64_t found = begin + (at - row.begin());
    for (std::int64_t seen = first; found < seen && !first.compare_exchange_weak(seen, found);) {
    }
  });
  return first == std::numeric_limits<std::int64_t>::max() ? -1 : first.load();
}

void sort_rows(std::span<const std::int64_t> indptr, std::span<const std::int64_t> times, std::int64_t* order, int threads) {
  for_each_row(indptr, threads, [&](std::int64_t begin, std::int64_t end) {
    std::iota(order + begin, order + end, begin);
    const auto earlier = [&](std::int64_t a, std::int64_t b) {
      return times[static_cast<std::size_t>(a)] < times[static_cast<std::size_t>(b)];
    };
    if (!std::is_sorted(order + begin, order + end, earlier)) std::stable_sort(order + begin, order + end, earlier);
  });
}

}  // namespace khop
