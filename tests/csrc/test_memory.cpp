#include "memory.h"

#include <algorithm>
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
  for (const std::size_t count : {std::size_t{0}, std::size_t{100}, bytes.size()}) khop::expect_random_access(bytes.data(), count);
  CHECK(std::ranges::all_of(bytes, [](std::uint8_t byte) { return byte == 9; }));
}
