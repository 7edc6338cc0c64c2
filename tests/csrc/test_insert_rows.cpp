#include "insert_rows.h"

#include <cstdint>
#include <vector>

#include "check.h"

namespace {

std::vector<std::byte> numbered(std::size_t count, int first) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(first + static_cast<int>(i));
  return bytes;
}

}  // namespace

TEST(rows_are_put_before_rows_of_the_table_and_at_its_end) {
  for (const std::size_t width : {1, 2, 3, 4, 8, 12}) {
    const auto table = numbered(3 * width, 0), added = numbered(4 * width, 100);
    const std::vector<std::int64_t> at{0, 2, 2, 3};
    std::vector<std::byte> out(7 * width);
    CHECK_EQUAL(khop::insert_rows(table.data(), 3, width, at, added.data(), out.data()), -1);
    const std::vector<int> expected{-1, 0, 1, -2, -3, 2, -4};  // negative: an added row
    for (std::size_t row = 0; row < expected.size(); ++row) {
      const int from = expected[row];
      const std::byte* const source = from >= 0 ? table.data() + static_cast<std::size_t>(from) * width
                                                : added.data() + static_cast<std::size_t>(-from - 1) * width;
      for (std::size_t byte = 0; byte < width; ++byte) CHECK(out[row * width + byte] == source[byte]);
    }
  }
}

TEST(places_that_descend_or_lie_outside_are_named) {
  const auto table = numbered(3, 0), added = numbered(2, 100);
  std::vector<std::byte> out(5);
  const std::vector<std::int64_t> falling{2, 1}, outside{1, 4}, negative{-1, 0};
  CHECK_EQUAL(khop::insert_rows(table.data(), 3, 1, falling, added.data(), out.data()), 1);
  CHECK_EQUAL(khop::insert_rows(table.data(), 3, 1, outside, added.data(), out.data()), 1);
  CHECK_EQUAL(khop::insert_rows(table.data(), 3, 1, negative, added.data(), out.data()), 0);
  CHECK_EQUAL(khop::insert_rows(nullptr, 0, 1, {}, nullptr, nullptr), -1);
}
