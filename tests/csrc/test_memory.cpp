#include "memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "check.h"

TEST(mapped_memory_is_zero_and_large_pieces_can_be_huge_pages) {
  for (const std::size_t bytes : {std::size_t{1}, khop::kPageBytes, khop::kHugePageBytes, khop::kHugePageBytes * 3 + 1}) {
    auto* const data = static_cast<unsigned char*>(khop::map_memory(bytes));
    const std::size_t unit = bytes < khop::kHugePageBytes ? 4096 : khop::kHugePageBytes;
    CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(data) % unit, std::uintptr_t{0});
    CHECK(std::all_of(data, data + bytes, [](unsigned char byte) { return byte == 0; }));
    std::fill(data, data + bytes, static_cast<unsigned char>(1));
    khop::unmap_memory(data, bytes);
  }
}

TEST(a_zeroed_array_moves) {
  khop::ZeroedArray<std::uint32_t> array(1000);
  array[999] = 7;
  khop::ZeroedArray<std::uint32_t> moved(std::move(array));
  CHECK_EQUAL(moved[999], 7U);
  CHECK_EQUAL(moved[0], 0U);
  moved = khop::ZeroedArray<std::uint32_t>(0);
  CHECK_EQUAL(moved.size(), std::size_t{0});
}

TEST(advice_changes_no_contents) {
  std::vector<std::uint8_t> bytes(khop::kHugePageBytes * 3 + 5, 9);
  for (const std::size_t count : {std::size_t{0}, std::size_t{100}, bytes.size()}) {
    khop::expect_random_access(bytes.data(), count);
    khop::read_in_background(bytes.data(), count);
    khop::expect_sparse_reads(bytes.data(), count);
  }
  khop::forget_sparse_reads(bytes.data());
  CHECK(std::ranges::all_of(bytes, [](std::uint8_t byte) { return byte == 9; }));
}

TEST(addresses_within_sparse_ranges_are_known_until_they_are_forgotten) {
  std::vector<std::uint8_t> first(1000), second(1000);
  CHECK(!khop::has_sparse_reads(first.data()));
  khop::expect_sparse_reads(first.data(), first.size());
  khop::expect_sparse_reads(second.data(), second.size());
  CHECK(khop::has_sparse_reads(first.data()));
  CHECK(khop::has_sparse_reads(first.data() + 999));
  CHECK(!khop::has_sparse_reads(first.data() + 1000));
  khop::forget_sparse_reads(first.data());
  CHECK(!khop::has_sparse_reads(first.data()));
  CHECK(khop::has_sparse_reads(second.data()));
  khop::forget_sparse_reads(second.data());
  khop::forget_sparse_reads(second.data());
  CHECK(!khop::has_sparse_reads(second.data()));
}

TEST(requests_of_rows_change_nothing) {
  std::vector<std::byte> table(3 * 4096 + 17, std::byte{5});
  std::vector<const std::byte*> rows;
  khop::request_rows(rows, 300);
  for (const std::size_t at : {std::size_t{9000}, std::size_t{0}, std::size_t{0}, std::size_t{4000}}) rows.push_back(table.data() + at);
  khop::request_rows(rows, 300);
  khop::request_rows(rows, 1);
  CHECK(std::ranges::all_of(table, [](std::byte byte) { return byte == std::byte{5}; }));
}
