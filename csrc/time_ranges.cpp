#include "time_ranges.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "checks.h"
#include "csc.h"
#include "hop_rows.h"
#include "parallel.h"
#include "simd.h"

namespace khop {
namespace {

constexpr std::int64_t kBlock = 64;  // rows whose searches are interleaved
constexpr std::int64_t kEarliest = std::numeric_limits<std::int64_t>::min();

// Saturated to 64 bits.
std::int64_t saturated(std::int64_t time, std::int64_t shift) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(time, shift, &sum)) return sum;
  return shift < 0 ? kEarliest : std::numeric_limits<std::int64_t>::max();
}

// Finds the ranges of up to kBlock frontier rows at a time.
class RangeWalk {
 public:
  RangeWalk(const Csc<std::int64_t>& graph, const Rising& times, const EdgeTimes& own, const RangeRequest& request,
            std::int64_t* ranges)
      : graph_(graph),
        own_(own),
        plain_(own.plain()),
        outline_(times.outline.data()),
        nodes_(request.nodes.data()),
        until_(request.until.data()),
        before_(request.before),
        after_(request.after),
        most_(request.most),
        ranges_(ranges),
        searches_(times, 2 * kBlock) {
    whole_.nodes = request.nodes;
  }

  // Processes frontier rows [first, last). The times at the ends of a block's ranges are prefetched while the next block is searched.
  void run(std::int64_t first, std::int64_t last) {
    Block before{first, first, rows_[1]}, block = after(before, last, rows_[0]);
    prefetch_pointers(block);
    while (block.first < last) {
      const Block next = after(block, last, before.rows);
      find_rows(block);
      prefetch_pointers(next);
      for (std::int64_t i = block.first; i < block.end; ++i) begin_row(i, block.row(i));
      prefetch_sources(before);
      searches_.finish(Found{ranges_});
      check(before);
      prefetch_ends(block);
      before = block;
      block = next;
    }
    prefetch_sources(before);
    check(before);
  }

 private:
  // Processes frontier rows [first, end).
  struct Block {
    std::int64_t first, end;
    Row* rows;
    KHOP_INLINE const Row& row(std::int64_t i) const { return rows[i - first]; }
  };

  static Block after(const Block& block, std::int64_t last, Row* rows) { return {block.end, std::min(block.end + kBlock, last), rows}; }

  struct Found {
    std::int64_t* ranges;
    KHOP_INLINE void operator()(std::int64_t slot, std::int64_t edge) const { ranges[slot] = edge; }
  };

  KHOP_INLINE void prefetch_pointers(const Block& block) const {
    for (std::int64_t i = block.first; i < block.end; ++i) {
      const std::int64_t* const row = graph_.indptr.data() + nodes_[i];
      __builtin_prefetch(row);
      __builtin_prefetch(row + 1);
    }
  }

  KHOP_INLINE void find_rows(const Block& block) {
    for (std::int64_t i = block.first; i < block.end; ++i) block.rows[i - block.first] = row_at(graph_, whole_, i);
    for (std::int64_t i = block.first; i < block.end; ++i) prefetch_outline(outline_, nodes_[i], block.row(i).begin);
  }

  KHOP_INLINE void begin_row(std::int64_t i, const Row& row) {
    ranges_[2 * i] = ranges_[2 * i + 1] = row.begin;
    if (row.degree == 0) return;
    const std::int64_t until = until_[i];
    const std::int64_t latest = saturated(until, after_);
    const std::int64_t earliest = before_ < 0 ? kEarliest : saturated(until, -before_);
    const OutlinedRow outline = outlined_row(outline_, nodes_[i], row.begin);
    search(2 * i + 1, outline, row, latest);
    if (earliest != kEarliest) search(2 * i, outline, row, earliest - 1);
  }

  // fn(edge) for the first and the last edge of each range. An fn that only prefetches must be always_inline, because GCC removes
  // its calls otherwise.
  template <class Fn>
  KHOP_INLINE void over_ends(const Block& block, const Fn& fn) const {
    for (std::int64_t i = block.first; i < block.end; ++i) {
      const Row& row = block.row(i);
      if (row.degree == 0) continue;
      fn(std::max(ranges_[2 * i + 1] - 1, row.begin));
      if (before_ >= 0) fn(std::min(ranges_[2 * i], row.begin + row.degree - 1));
    }
  }

  // Both sides of each end are checked in plain times; for one end in eight they are in two cache lines.
  KHOP_INLINE void prefetch_ends(const Block& block) const {
    if (plain_ == nullptr) {
      over_ends(block, [&](std::int64_t edge) __attribute__((always_inline)) { own_.prefetch(edge); });
      return;
    }
    for (std::int64_t i = block.first; i < block.end; ++i) {
      const std::int64_t end = ranges_[2 * i + 1];
      __builtin_prefetch(plain_ + end - 1);
      __builtin_prefetch(plain_ + end);
      if (before_ < 0) continue;
      const std::int64_t begin = ranges_[2 * i];
      __builtin_prefetch(plain_ + begin - 1);
      __builtin_prefetch(plain_ + begin);
    }
  }

  KHOP_INLINE void prefetch_sources(const Block& block) const {
    if (has_sources_) over_ends(block, [&](std::int64_t edge) __attribute__((always_inline)) { own_.prefetch_source(edge); });
  }

  // Derived data may be damaged, so the graph's times decide.
  KHOP_INLINE void check(const Block& block) const {
    for (std::int64_t i = block.first; i < block.end; ++i) {
      const Row& row = block.row(i);
      const bool fits = row.degree == 0 || (plain_ != nullptr ? fits_both_sides(i, row) : fits_inside(i, row));
      if (!fits) [[unlikely]] search_again(i, row);
      finish_row(i);
    }
  }

  KHOP_INLINE std::int64_t latest(std::int64_t i) const { return saturated(until_[i], after_); }
  KHOP_INLINE std::int64_t earliest(std::int64_t i) const {
    return before_ < 0 ? kEarliest : saturated(until_[i], -before_);
  }

  // Without branches on the ends of ranges, which are unpredictable.
  KHOP_INLINE bool fits_both_sides(std::int64_t i, const Row& row) const {
    const std::int64_t row_end = row.begin + row.degree, last = row_end - 1;
    const std::int64_t end = ranges_[2 * i + 1], bound = latest(i);
    const bool fits = ((end == row.begin) | (plain_[std::max(end - 1, row.begin)] <= bound)) &
                      ((end == row_end) | (plain_[std::min(end, last)] > bound));
    if (before_ < 0) return fits;
    const std::int64_t begin = ranges_[2 * i], first = earliest(i);
    return fits & ((begin == row.begin) | (plain_[std::max(begin - 1, row.begin)] < first)) &
           ((begin == row_end) | (plain_[std::min(begin, last)] >= first));
  }

  KHOP_INLINE bool fits_inside(std::int64_t i, const Row& row) const {
    const std::int64_t begin = ranges_[2 * i], end = ranges_[2 * i + 1];
    if (end > row.begin && own_[end - 1] > latest(i)) return false;
    return before_ < 0 || begin >= end || own_[begin] >= earliest(i);
  }

  [[gnu::cold, gnu::noinline]] void search_again(std::int64_t i, const Row& row) const {
    ranges_[2 * i + 1] = first_above(row, latest(i));
    ranges_[2 * i] = earliest(i) == kEarliest ? row.begin : first_above(row, earliest(i) - 1);
  }

  std::int64_t first_above(const Row& row, std::int64_t bound) const {
    std::int64_t low = row.begin, high = row.begin + row.degree;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (own_[middle] > bound) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  // Starts the search for the first time above `bound`; the guess assumes evenly distributed times within a row.
  KHOP_INLINE void search(std::int64_t slot, const OutlinedRow& outline, const Row& row, std::int64_t bound) {
    const std::int64_t end = row.begin + row.degree;
    if (bound >= outline.last) {
      ranges_[slot] = end;
      return;
    }
    if (bound < outline.first) {
      ranges_[slot] = row.begin;
      return;
    }
    // Differences of integers: near 2^60, a double represents only every 256th integer.
    const double share = distance(outline.first, bound) / distance(outline.first, outline.last);
    const auto guess = static_cast<std::int64_t>(share * static_cast<double>(row.degree - 1));
    searches_.begin(slot, outline, row.begin, end, row.begin + guess, bound, Found{ranges_});
  }

  KHOP_INLINE void finish_row(std::int64_t i) const {
    std::int64_t& begin = ranges_[2 * i];
    const std::int64_t end = ranges_[2 * i + 1];
    begin = std::min(begin, end);
    if (most_ >= 0) begin = std::max(begin, end - most_);
  }

  // Half of it, never 0: signed integers are converted to double in one instruction.
  static KHOP_INLINE double distance(std::int64_t from, std::int64_t to) {
    const std::uint64_t whole = static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from);
    return static_cast<double>(static_cast<std::int64_t>(whole >> 1)) + 0.5;
  }

  const Csc<std::int64_t>& graph_;
  const EdgeTimes& own_;
  const std::int64_t* const plain_;  // the graph's times if they are int64 and only of edges, else null
  const std::int16_t* const outline_;
  const std::int64_t* const nodes_;
  const std::int64_t* const until_;
  const std::int64_t before_, after_, most_;
  std::int64_t* const ranges_;
  HopRequest whole_;
  const bool has_sources_ = own_.sources.size() > 0;
  Row rows_[2][kBlock];
  RisingSearches searches_;
};

// Calls fn(row) for every row, in parts with about equal numbers of edges.
template <class Fn>
void for_each_row(std::span<const std::int64_t> indptr, int threads, const Fn& fn) {
  const auto rows = static_cast<std::int64_t>(indptr.size()) - 1;
  parallel_for(threads, rows, 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) fn(indptr[static_cast<std::size_t>(row)], indptr[static_cast<std::size_t>(row) + 1]);
  });
}

}  // namespace

void time_ranges(std::span<const std::int64_t> indptr, const Rising& times, const EdgeTimes& own, const RangeRequest& request,
                 std::int64_t* ranges) {
  const Csc<std::int64_t> graph{indptr, times.values};
  const auto frontier = static_cast<std::int64_t>(request.nodes.size());
  if (request.until.size() != request.nodes.size()) throw std::invalid_argument("until: one limit per frontier row is needed");
  check_rising(times, static_cast<std::int64_t>(times.values.size()), graph.rows(), "times");
  check_nodes(graph, request.nodes);
  parallel_for(request.threads, frontier, 256, [&](std::int64_t begin, std::int64_t end) {
    RangeWalk(graph, times, own, request, ranges).run(begin, end);
  });
}

std::int64_t first_unsorted(std::span<const std::int64_t> indptr, const EdgeTimes& times, std::int64_t edges, int threads) {
  check_rows(indptr, edges);
  std::atomic<std::int64_t> first = std::numeric_limits<std::int64_t>::max();
  for_each_row(indptr, threads, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t before = kEarliest;
    for (std::int64_t edge = begin; edge < end; ++edge) {
      const std::int64_t time = times[edge];
      if (time < before) {
        for (std::int64_t seen = first; edge < seen && !first.compare_exchange_weak(seen, edge);) {
        }
        return;
      }
      before = time;
    }
  });
  return first == std::numeric_limits<std::int64_t>::max() ? -1 : first.load();
}

void sort_rows(std::span<const std::int64_t> indptr, std::span<const std::int64_t> times, std::int64_t* order, int threads) {
  check_rows(indptr, static_cast<std::int64_t>(times.size()));
  for_each_row(indptr, threads, [&](std::int64_t begin, std::int64_t end) {
    std::iota(order + begin, order + end, begin);
    const auto earlier = [&](std::int64_t a, std::int64_t b) {
      return times[static_cast<std::size_t>(a)] < times[static_cast<std::size_t>(b)];
    };
    if (!std::is_sorted(order + begin, order + end, earlier)) std::stable_sort(order + begin, order + end, earlier);
  });
}

}  // namespace khop
