#include "check.h"
#include "random.h"

using khop::Words;

// The known answers that come with Random123 (Salmon et al.), philox4x32, 10 rounds.
TEST(philox_gives_the_published_words) {
  CHECK(khop::philox(0, {0, 0, 0, 0}) == (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK(khop::philox(~0ULL, {~0U, ~0U, ~0U, ~0U}) == (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK(khop::philox(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
        (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The first outputs of SplitMix64 seeded with 0.
TEST(mix64_gives_the_published_words) {
  CHECK_EQUAL(khop::mix64(0), 0xe220a8397b1dcdafULL);
  CHECK_EQUAL(khop::mix64(0x9E3779B97F4A7C15), 0x6e789e6aa1b965f4ULL);
}

TEST(narrow_rows_take_words_in_order_across_blocks) {
  khop::RowWords words(7, 0x1'0000'0002, 3);
  for (std::uint32_t block = 0; block < 3; ++block) {
    for (const std::uint32_t word : khop::philox(7, {2, 1, 3, block})) {
      CHECK_EQUAL(words.below(1000, 1000), (std::uint64_t{word} * 1000) >> 32);
    }
  }
}

TEST(rows_of_the_wide_degree_take_two_words_low_first) {
  const Words block = khop::philox(7, {5, 0, 3, 0});
  __extension__ using Wide = unsigned __int128;
  const std::uint64_t degree = khop::kWideDegree;
  khop::RowWords words(7, 5, 3);
  for (int draw = 0; draw < 2; ++draw) {
    const std::uint64_t wide = block[2 * draw] | (std::uint64_t{block[2 * draw + 1]} << 32);
    CHECK_EQUAL(words.below(degree, degree), static_cast<std::uint64_t>((Wide{wide} * degree) >> 64));
  }
}

TEST(a_draw_stays_below_its_range) {
  for (const std::uint64_t degree : {std::uint64_t{1}, std::uint64_t{3}, khop::kWideDegree - 1, std::uint64_t{1} << 40}) {
    khop::RowWords words(1, 2, 3);
    for (int draw = 0; draw < 1000; ++draw) CHECK(words.below(degree, degree) < degree);
  }
}
