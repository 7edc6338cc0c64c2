#include "deal_edges.h"

#include <cstdint>
#include <vector>

#include "check.h"

TEST(edges_are_dealt_to_ranges_in_input_order) {
  const std::vector<std::int32_t> destinations{9, 4, 7, 4, 8, 5};
  std::vector<std::int64_t> begin(4);
  std::vector<std::uint32_t> order(6);
  CHECK_EQUAL(khop::deal_edges<std::int32_t>(destinations, 4, 1, begin, order), -1);
  CHECK((begin == std::vector<std::int64_t>{0, 3, 4, 6}));
  CHECK((order == std::vector<std::uint32_t>{1, 3, 5, 2, 0, 4}));
  CHECK_EQUAL(khop::deal_edges<std::int32_t>(destinations, 5, 1, begin, order), 1);
  CHECK_EQUAL(khop::deal_edges<std::int32_t>(destinations, 3, 1, begin, order), 0);
}

TEST(rows_of_any_width_are_taken) {
  for (const std::size_t width : {1, 2, 3, 4, 8, 12}) {
    std::vector<std::byte> table(5 * width), out(3 * width);
    for (std::size_t at = 0; at < table.size(); ++at) table[at] = static_cast<std::byte>(at);
    const std::vector<std::uint32_t> order{4, 0, 4}, wrong{4, 5, 6};
    CHECK_EQUAL(khop::take_rows(table.data(), 5, width, order, out.data()), -1);
    for (std::size_t at = 0; at < out.size(); ++at) CHECK(out[at] == table[order[at / width] * width + at % width]);
    CHECK_EQUAL(khop::take_rows(table.data(), 5, width, wrong, out.data()), 1);
  }
}
