#include "time_ranges.h"

#include <algorithm>
#include <limits>
#include <span>
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

khop::EdgeTimes own_times(const std::vector<std::int64_t>& times) {
  return {khop::WholeNumbers(std::span<const std::int64_t>(times)), {}, {}};
}

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
        khop::time_ranges(graph.indptr, {graph.times, outline}, own_times(graph.times), {nodes, until, before, 0, most, threads}, ranges.data());
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
  CHECK_EQUAL(khop::first_unsorted(indptr, own_times(times), 6, 1), std::int64_t{1});
  const std::vector<std::int64_t> risen{1, 2, 3, 0, 0, 1};
  CHECK_EQUAL(khop::first_unsorted(indptr, own_times(risen), 6, 1), std::int64_t{-1});
}

TEST(a_frontier_node_that_is_no_row_has_no_range) {
  const std::vector<std::int64_t> indptr{0, 1}, times{1}, nodes{1}, until{1};
  const std::vector<std::int16_t> outline = khop::testing::outline_of(indptr, times);
  std::int64_t ranges[2];
  CHECK_THROWS(std::invalid_argument, khop::time_ranges(indptr, {times, outline}, own_times(times), {nodes, until}, ranges));
}

TEST(no_outline_and_no_derived_times_change_a_range) {
  const Timed graph;
  const std::vector<std::int16_t> sound = khop::testing::outline_of(graph.indptr, graph.times);
  std::vector<std::int64_t> nodes, until;
  for (std::int64_t i = 0; i < 600; ++i) {
    nodes.push_back(i % 150);
    until.push_back(static_cast<std::int64_t>(khop::mix64(static_cast<std::uint64_t>(i)) >> (30 + i % 30)));
  }
  const auto ranges_of = [&](const std::vector<std::int64_t>& times, const std::vector<std::int16_t>& outline) {
    std::vector<std::int64_t> ranges(2 * nodes.size());
    khop::time_ranges(graph.indptr, {times, outline}, own_times(graph.times), {nodes, until, 1000, 0, -1, 2}, ranges.data());
    return ranges;
  };
  const std::vector<std::int64_t> expected = ranges_of(graph.times, sound);
  for (std::uint64_t round = 0; round < 20; ++round) {
    std::vector<std::int16_t> outline = sound;
    std::vector<std::int64_t> times = graph.times;
    for (std::uint64_t at = 0; at < 300; ++at) {
      const std::uint64_t mixed = khop::mix64(1000 * round + at);
      outline[mixed % outline.size()] = static_cast<std::int16_t>(mixed >> 48);
      times[mixed % times.size()] ^= std::int64_t{1} << (mixed >> 58);
    }
    CHECK(ranges_of(times, outline) == expected);
  }
}

TEST(times_that_a_double_cannot_tell_apart_are_told_apart) {
  const std::vector<std::int64_t> indptr{0, 3}, nodes{0};
  const std::vector<std::int64_t> times{std::int64_t{1} << 60, (std::int64_t{1} << 60) + 1, (std::int64_t{1} << 60) + 1};
  const std::vector<std::int16_t> outline = khop::testing::outline_of(indptr, times);
  const std::vector<std::int64_t> until{times[0]};
  std::int64_t ranges[2];
  khop::time_ranges(indptr, {times, outline}, own_times(times), {nodes, until}, ranges);
  CHECK_EQUAL(ranges[0], std::int64_t{0});
  CHECK_EQUAL(ranges[1], std::int64_t{1});
}

TEST(an_edge_was_there_at_the_later_of_its_times) {
  const std::vector<std::int8_t> edges{3, -1, 2};
  const std::vector<std::uint8_t> sources{5, 250};
  const std::vector<std::int32_t> indices{0, 1, 2};
  const khop::EdgeTimes times{khop::WholeNumbers(std::span<const std::int8_t>(edges)),
                              khop::WholeNumbers(std::span<const std::uint8_t>(sources)),
                              khop::WholeNumbers(std::span<const std::int32_t>(indices))};
  CHECK_EQUAL(times[0], std::int64_t{5});
  CHECK_EQUAL(times[1], std::int64_t{250});
  CHECK_THROWS(khop::DamagedArray, times[2]);
}

TEST(damaged_rows_are_not_followed) {
  const std::vector<std::int64_t> times{1, 2, 3};
  for (const std::vector<std::int64_t>& indptr : {std::vector<std::int64_t>{0, 70000, 3}, {0, 2, 1}, {1, 2, 3}, {0, 1, 2}, {0, -1, 3}}) {
    std::int64_t order[3];
    std::vector<std::int16_t> outline(64);
    CHECK_THROWS(khop::DamagedArray, khop::first_unsorted(indptr, own_times(times), 3, 1));
    CHECK_THROWS(khop::DamagedArray, khop::sort_rows(indptr, times, order, 1));
    CHECK_THROWS(khop::DamagedArray, khop::make_outline(indptr, times, outline.data(), 1));
  }
}
