#include "checks.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "levels.h"

namespace {

template <class Id>
void the_first_of_two_is_found(std::int64_t size) {
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{10}, std::int64_t{std::numeric_limits<Id>::max()}}) {
    std::vector<Id> ids(static_cast<std::size_t>(size), Id{9});
    for (const int threads : {1, 4}) CHECK_EQUAL(khop::first_outside<Id>(ids, 10, threads), -1);
    ids[static_cast<std::size_t>(size * 2 / 3)] = static_cast<Id>(bad);
    ids.back() = static_cast<Id>(bad);
    for (const int threads : {1, 4}) CHECK_EQUAL(khop::first_outside<Id>(ids, 10, threads), size * 2 / 3);
  }
}

}  // namespace

TEST(the_first_id_outside_is_found_at_every_level) {
  khop::testing::at_every_kernel_level([] {
    for (const std::int64_t size : {1, 2, 1023, 1024, 1025, 1'500'000}) {
      the_first_of_two_is_found<std::int32_t>(size);
      the_first_of_two_is_found<std::int64_t>(size);
    }
  });
}

TEST(no_id_fits_no_node_and_no_ids_fit_any) {
  const std::vector<std::int64_t> zero{0}, none;
  CHECK_EQUAL(khop::first_outside<std::int64_t>(zero, 0, 1), 0);
  CHECK_EQUAL(khop::first_outside<std::int64_t>(none, 0, 1), -1);
}

TEST(a_limit_beyond_32_bits_admits_every_int32) {
  const std::vector<std::int32_t> ids{0, std::numeric_limits<std::int32_t>::max()};
  CHECK_EQUAL(khop::first_outside<std::int32_t>(ids, std::int64_t{1} << 40, 1), -1);
  CHECK_EQUAL(khop::first_outside<std::int32_t>(ids, std::int64_t{1} << 31, 1), -1);
  CHECK_EQUAL(khop::first_outside<std::int32_t>(ids, (std::int64_t{1} << 31) - 1, 1), 1);
}

TEST(offsets_begin_with_zero_never_fall_and_end_with_the_edges) {
  const auto first = [](std::vector<std::int64_t> indptr) { return khop::first_wrong_offset(indptr, 5); };
  CHECK_EQUAL(first({0, 2, 2, 5}), -1);
  CHECK_EQUAL(first({1, 2, 2, 5}), 0);
  CHECK_EQUAL(first({0, 2, 1, 5}), 2);
  CHECK_EQUAL(first({0, 6, 5, 5}), 2);
  CHECK_EQUAL(first({0, 2, 4}), 2);
  CHECK_EQUAL(first({0}), 0);
}

TEST(damaged_rows_are_named) {
  const auto problem_of = [](const std::vector<std::int64_t>& indptr) {
    try {
      khop::check_rows(indptr, 5);
    } catch (const khop::DamagedArray& damage) {
      return std::string(damage.array) + " " + std::string(damage.what()).substr(0, 6);
    }
    return std::string();
  };
  CHECK_EQUAL(problem_of({0, 2, 2, 5}), std::string());
  CHECK_EQUAL(problem_of({0, 9, 2, 5}), std::string("indptr row 1 "));
  CHECK_EQUAL(problem_of({3, 4, 4, 5}), std::string("indptr row 0 "));
  CHECK_EQUAL(problem_of({0, 2, 2, 4}), std::string("indptr row 2 "));
  CHECK_EQUAL(problem_of({}), std::string("indptr has no"));
}

TEST(what_does_not_fit_is_refused) {
  const std::vector<std::int64_t> ids{0, 5}, falling{0, 3, 2};
  khop::check_ids<std::int64_t>(ids, 6, "source", 1);
  CHECK_THROWS(std::invalid_argument, khop::check_ids<std::int64_t>(ids, 5, "source", 1));
  CHECK_THROWS(std::invalid_argument, khop::check_offsets(falling, 2, "offsets"));
  CHECK_THROWS(std::invalid_argument, khop::check_offsets({}, 0, "offsets"));
  khop::check_size(2, 2, "out");
  CHECK_THROWS(std::invalid_argument, khop::check_size(1, 2, "out"));
}
