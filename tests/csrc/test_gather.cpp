#include "gather.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "bytes.h"
#include "check.h"
#include "levels.h"
#include "memory.h"
#include "number.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // see number.h

namespace {

constexpr std::int64_t kRows = 37;

// Ids that jump about, repeat, and have both ends of the table.
std::vector<std::int64_t> some_ids(std::size_t count) {
  std::vector<std::int64_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int64_t>(i * i * 7 + i) % kRows;
  if (count > 1) ids.back() = kRows - 1;
  return ids;
}

// Every row of T as float32, one number at a time.
template <class T>
std::vector<float> widened(const std::vector<T>& table, std::int64_t width, const std::vector<std::int64_t>& ids,
                           const std::vector<float>& scales) {
  std::vector<float> rows;
  for (const std::int64_t id : ids) {
    for (std::int64_t column = 0; column < width; ++column) {
      const float value = khop::Single<T>::load(table.data() + id * width + column);
      rows.push_back(scales.empty() ? value : value * scales[static_cast<std::size_t>(column)]);
    }
  }
  return rows;
}

void gather(khop::GatherColumn column, const void* table, const std::vector<std::int64_t>& ids, void* out) {
  column.pieces = {{table, 0}};
  column.count = static_cast<std::int64_t>(ids.size());
  column.out = out;
  khop::gather_columns(std::span(&column, 1), ids, 3);
}

template <class T>
void widens_as_one_by_one(khop::GatherColumn::Kind kind, T (*number)(std::size_t)) {
  for (const std::int64_t width : {0, 1, 15, 16, 17, 100}) {
    std::vector<T> table;
    for (std::size_t i = 0; i < static_cast<std::size_t>(kRows * width); ++i) table.push_back(number(i));
    for (const bool scaled : {false, true}) {
      const std::vector<float> scales(scaled ? static_cast<std::size_t>(width) : 0, 0.37F);
      for (const std::size_t count : {0, 1, 20, 3'000}) {
        const auto ids = some_ids(count);
        const auto expected = widened(table, width, ids, scales);
        std::vector<float> out(expected.size());
        gather({kind, {}, width, scaled ? scales.data() : nullptr}, table.data(), ids, out.data());
        CHECK(khop::testing::same_bytes(out, expected));
      }
    }
  }
}

}  // namespace

TEST(rows_of_any_size_are_copied) {
  khop::testing::at_every_kernel_level([] {
    for (const std::int64_t bytes : {0, 1, 4, 8, 63, 400, 3000}) {
      std::vector<std::byte> table(static_cast<std::size_t>(kRows * bytes));
      for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::byte>(i * 31);
      for (const std::size_t count : {0, 1, 20, 2000}) {
        const auto ids = some_ids(count);
        std::vector<std::byte> expected, out(count * static_cast<std::size_t>(bytes));
        for (const std::int64_t id : ids) expected.insert(expected.end(), table.begin() + id * bytes, table.begin() + (id + 1) * bytes);
        gather({khop::GatherColumn::Kind::bytes, {}, bytes}, table.data(), ids, out.data());
        CHECK(out == expected);
      }
    }
  });
}

TEST(small_numbers_are_widened_to_the_same_bits_at_every_level) {
  using Kind = khop::GatherColumn::Kind;
  khop::testing::at_every_kernel_level([] {
    widens_as_one_by_one<khop::Float16>(Kind::float16, [](std::size_t i) { return khop::Float16{static_cast<std::uint16_t>(i * 2551)}; });
    widens_as_one_by_one<khop::BFloat16>(Kind::bfloat16, [](std::size_t i) { return khop::BFloat16{static_cast<std::uint16_t>(i * 2551)}; });
    widens_as_one_by_one<std::int8_t>(Kind::int8, [](std::size_t i) { return static_cast<std::int8_t>(i * 7); });
    widens_as_one_by_one<std::uint8_t>(Kind::uint8, [](std::size_t i) { return static_cast<std::uint8_t>(i * 7); });
  });
}

TEST(every_float16_has_its_value) {
  for (std::uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const khop::Float16 half{static_cast<std::uint16_t>(bits)};
    const float value = khop::Single<khop::Float16>::load(&half);
    const int exponent = (bits >> 10) & 31;
    const auto mantissa = static_cast<float>(bits & 1023);
    const float sign = bits >> 15 ? -1.0F : 1.0F;
    if (exponent == 31) {
      CHECK_EQUAL(std::isnan(value), mantissa != 0);
      CHECK(mantissa != 0 || value == sign * INFINITY);
    } else {
      CHECK_EQUAL(value, sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25)));
      CHECK_EQUAL(std::signbit(value), sign < 0);
    }
  }
}

TEST(rounding_to_bfloat16_is_to_nearest_even) {
  const auto rounded = [](std::uint32_t bits) {
    const float value = std::bit_cast<float>(bits);
    khop::BFloat16 out;
    khop::Single<khop::BFloat16>::store(&out, value);
    using Group = khop::Group<khop::BFloat16, 16>;
    khop::BFloat16 group[Group::count];
    Group::store(group, Group::Value{} + value);
    CHECK_EQUAL(group[Group::count - 1].bits, out.bits);
    return out.bits;
  };
  CHECK_EQUAL(rounded(0x3F808000), 0x3F80);
  CHECK_EQUAL(rounded(0x3F818000), 0x3F82);
  CHECK_EQUAL(rounded(0x3F808001), 0x3F81);
  CHECK_EQUAL(rounded(0x7F7FFFFF), 0x7F80);  // the largest float32 becomes infinite
  CHECK_EQUAL(rounded(0xFF800000), 0xFF80);
  CHECK_EQUAL(rounded(0x7F800001), 0x7FC0);  // a NaN whose upper half says infinity
}

TEST(several_columns_are_gathered_as_each_by_itself) {
  using Kind = khop::GatherColumn::Kind;
  constexpr std::int64_t kWidth = 19;
  std::vector<std::int8_t> bytes;
  std::vector<khop::BFloat16> halves;
  for (std::int64_t i = 0; i < kRows * kWidth; ++i) {
    bytes.push_back(static_cast<std::int8_t>(i));
    halves.push_back({static_cast<std::uint16_t>(0x3F80 + i)});
  }
  const std::vector<float> scales(kWidth, 0.5F);
  for (const int threads : {1, 4}) {
    const auto ids = some_ids(30'000);
    const std::int64_t rows = 30'000, fewer = 9'000;
    std::vector<float> one(static_cast<std::size_t>(rows * kWidth)), two(static_cast<std::size_t>(fewer * kWidth));
    std::vector<std::int8_t> three(static_cast<std::size_t>(rows * kWidth));
    const khop::GatherColumn columns[] = {{Kind::int8, {{bytes.data(), 0}}, kWidth, scales.data(), rows, one.data()},
                                          {Kind::bfloat16, {{halves.data(), 0}}, kWidth, nullptr, fewer, two.data()},
                                          {Kind::bytes, {{bytes.data(), 0}}, kWidth, nullptr, rows, three.data()}};
    khop::gather_columns(columns, ids, threads);
    CHECK(khop::testing::same_bytes(one, widened(bytes, kWidth, ids, scales)));
    const std::vector<std::int64_t> first(ids.begin(), ids.begin() + fewer);
    CHECK(khop::testing::same_bytes(two, widened(halves, kWidth, first, {})));
    std::vector<std::int8_t> copied;
    for (const std::int64_t id : ids) copied.insert(copied.end(), bytes.begin() + id * kWidth, bytes.begin() + (id + 1) * kWidth);
    CHECK(khop::testing::same_bytes(three, copied));
  }
}

TEST(a_table_in_pieces_gives_the_rows_of_the_whole) {
  using Kind = khop::GatherColumn::Kind;
  khop::testing::at_every_kernel_level([] {
    for (const std::int64_t width : {0, 3, 100}) {
      std::vector<khop::Float16> table;
      for (std::int64_t i = 0; i < kRows * width; ++i) table.push_back({static_cast<std::uint16_t>(i * 977)});
      // The second piece has no rows, and each of the others lies somewhere else.
      const std::vector<std::int64_t> firsts = {0, 5, 5, 30};
      std::vector<std::vector<khop::Float16>> pieces;
      std::vector<khop::Piece> found;
      for (std::size_t i = 0; i < firsts.size(); ++i) {
        const std::int64_t end = i + 1 < firsts.size() ? firsts[i + 1] : kRows;
        pieces.emplace_back(table.begin() + firsts[i] * width, table.begin() + end * width);
      }
      for (std::size_t i = 0; i < firsts.size(); ++i) found.push_back({pieces[i].data(), firsts[i]});
      const auto ids = some_ids(9'000);
      const auto rows = static_cast<std::int64_t>(ids.size());
      std::vector<float> wide(ids.size() * static_cast<std::size_t>(width));
      std::vector<khop::Float16> copied(wide.size());
      const khop::GatherColumn columns[] = {{Kind::float16, found, width, nullptr, rows, wide.data()},
                                            {Kind::bytes, found, 2 * width, nullptr, rows, copied.data()}};
      khop::gather_columns(columns, ids, 3);
      CHECK(khop::testing::same_bytes(wide, widened(table, width, ids, {})));
      std::vector<khop::Float16> expected;
      for (const std::int64_t id : ids) {
        expected.insert(expected.end(), table.begin() + id * width, table.begin() + (id + 1) * width);
      }
      CHECK(khop::testing::same_bytes(copied, expected));
    }
  });
}

TEST(rows_that_are_read_sparsely_are_the_same) {
  constexpr std::int64_t kWidth = 50, kMany = 20000;
  std::vector<khop::Float16> table(static_cast<std::size_t>(kMany * kWidth));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = khop::Float16{static_cast<std::uint16_t>(i % 30000)};
  std::vector<std::int64_t> ids(9000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i * 7919 + i * i) % kMany;
  const std::int64_t half = kMany / 2;
  const auto gathered = [&] {
    std::vector<float> out(ids.size() * kWidth);
    khop::GatherColumn column{khop::GatherColumn::Kind::float16, {{table.data(), 0}, {table.data() + half * kWidth, half}}, kWidth};
    column.count = static_cast<std::int64_t>(ids.size());
    column.out = out.data();
    khop::gather_columns(std::span(&column, 1), ids, 2);
    return out;
  };
  const std::vector<float> expected = gathered();
  khop::expect_sparse_reads(table.data(), table.size() * sizeof(khop::Float16));
  const std::vector<float> sparse = gathered();
  khop::forget_sparse_reads(table.data());
  CHECK(khop::testing::same_bytes(sparse, expected));
}
