#include "exact_sum.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "check.h"

TEST(sums_do_not_depend_on_the_order) {
  using Limits = std::numeric_limits<double>;
  const std::vector<double> numbers{Limits::max(), 1.5, -Limits::max(), Limits::denorm_min(), Limits::quiet_NaN(), -0.0};
  const std::vector<double> turned(numbers.rbegin(), numbers.rend());
  khop::ExactSums one, other;
  CHECK_EQUAL(khop::add_exactly<double>(one, numbers), -1);
  CHECK_EQUAL(khop::add_exactly<double>(other, turned), -1);
  CHECK_EQUAL(one.count, 5);
  CHECK_EQUAL(one.missing, 1);
  CHECK(one.sum.carried() == other.sum.carried());
  CHECK(one.squares.carried() == other.squares.carried());
  CHECK_EQUAL(one.sum.carried()[0], 1);  // the smallest double: 2^-1074
}

TEST(integers_at_the_ends_of_their_range_cancel) {
  const std::vector<std::int64_t> numbers{INT64_MIN, INT64_MAX, 1};
  khop::ExactSums sums;
  CHECK_EQUAL(khop::add_exactly<std::int64_t>(sums, numbers), -1);
  for (const std::int64_t limb : sums.sum.carried()) CHECK_EQUAL(limb, 0);
}

TEST(the_first_infinite_number_ends_the_sum) {
  const std::vector<float> numbers{1, std::numeric_limits<float>::infinity(), 2};
  khop::ExactSums sums;
  CHECK_EQUAL(khop::add_exactly<float>(sums, numbers), 1);
  CHECK_EQUAL(sums.count, 1);
}
