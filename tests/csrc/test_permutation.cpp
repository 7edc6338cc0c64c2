#include "permutation.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "check.h"

namespace {

std::vector<std::int64_t> slice(std::uint64_t key, std::uint64_t count, std::uint64_t start, std::size_t length) {
  std::vector<std::int64_t> entries(length);
  khop::permutation_slice(key, count, start, entries);
  return entries;
}

}  // namespace

TEST(every_small_size_is_permuted) {
  for (std::uint64_t count = 0; count < 300; ++count) {
    auto entries = slice(count * 7919, count, 0, count);
    std::ranges::sort(entries);
    std::vector<std::int64_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    CHECK(entries == all);
  }
}

TEST(slices_are_pieces_of_the_whole) {
  const auto whole = slice(5, 1000, 0, 1000);
  const auto piece = slice(5, 1000, 400, 100);
  CHECK(std::equal(piece.begin(), piece.end(), whole.begin() + 400));
}

TEST(the_largest_sizes_stay_in_range) {
  for (const std::uint64_t count : {(std::uint64_t{1} << 63) - 1, (std::uint64_t{1} << 62) + 1, (std::uint64_t{1} << 33)}) {
    for (const std::int64_t entry : slice(9, count, count - 50, 50)) {
      CHECK(entry >= 0 && static_cast<std::uint64_t>(entry) < count);
    }
  }
}
