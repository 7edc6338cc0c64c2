#include "time_ranges.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "outlines.h"
#include "random.h"

namespace {

constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();

// Rows of many lengths whose times rise, evenly or by powers.
struct Timed {
  std::vector<std::int64_t> indptr{0}, times;
  Timed() {
    for (std::int64_t row = 0; row < 150; ++row) {
      std::int64_t time = row - 75;
      for (std::int64_t at = 0; at < row * row % 97; ++at) {
        time += row % 3 == 0 ? 1 : static_cast<std::int64_t>(khop::mix64(static_cast<std::uint64_t>(row * 1000 + at)) >> (50 - at % 10));
        times.push_back(time);
      }
      indptr.push_back(static_cast<std::int64_t>(times.size()));
    }
  }
};

}  // namespace

TEST(a_range_holds_what_the_limit_allows) {
  const Timed graph;
  const std::vector<std::int16_t> outline = khop::testing::outline_of(graph.indptr, graph.times);
  std::vector<std::int64_t> nodes, until;
  for (std::int64_t i = 0; i < 900; ++i) {
    nodes.push_back(i % 150);
    const auto mixed = khop::mix64(static_cast<std::uint64_t>(i));
    until.push_back(i % 11 == 0 ? kLowest + i : static_cast<std::int64_t>(mixed >> (30 + i % 30)));
  }
  for (const std::int64_t before : {-1, 0, 1000, 1 << 20}) {
    for (const std::int64_t most : {-1, 0, 3}) {
      for (const int threads : {1, 3}) {
        std::vector<std::int64_t> ranges(2 * nodes.size());
        khop::time_ranges(graph.indptr, {graph.times, outline}, {nodes, until, before, 0, most, threads}, ranges.data());
        for (std::size_t i = 0; i < nodes.size(); ++i) {
          const auto row = static_cast<std::size_t>(nodes[i]);
          std::int64_t begin = graph.indptr[row], end = graph.indptr[row + 1];
          while (end > begin && graph.times[static_cast<std::size_t>(end - 1)] > until[i]) --end;
          const std::int64_t earliest = before < 0 || until[i] < kLowest + before ? kLowest : until[i] - before;
          while (begin < end && graph.times[static_cast<std::size_t>(begin)] < earliest) ++begin;
          if (most >= 0) begin = std::max(begin, end - most);
          CHECK_EQUAL(ranges[2 * i], begin);
          CHECK_EQUAL(ranges[2 * i + 1], end);
        }
      }
    }
  }
}

TEST(rows_are_sorted_and_found_to_be) {
  const std::vector<std::int64_t> indptr{0, 3, 3, 6}, times{3, 1, 1, 5, 5, 4};
  std::vector<std::int64_t> order(6);
  khop::sort_rows(indptr, times, order.data(), 2);
  CHECK(order == std::vector<std::int64_t>({1, 2, 0, 5, 3, 4}));
  CHECK_EQUAL(khop::first_unsorted(indptr, times, 1), std::int64_t{1});
  CHECK_EQUAL(khop::first_unsorted(indptr, std::vector<std::int64_t>{1, 2, 3, 0, 0, 1}, 1), std::int64_t{-1});
}

TEST(a_frontier_node_that_is_no_row_has_no_range) {
  const std::vector<std::int64_t> indptr{0, 1}, times{1}, nodes{1}, until{1};
  const std::vector<std::int16_t> outline = khop::testing::outline_of(indptr, times);
  std::int64_t ranges[2];
  CHECK_THROWS(std::invalid_argument, khop::time_ranges(indptr, {times, outline}, {nodes, until}, ranges));
}
