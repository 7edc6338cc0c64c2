#include "id_table.h"

#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "check.h"

namespace {

// Strings of every length from 0 to 40, each once, end to end.
struct Strings {
  explicit Strings(int count) {
    for (int i = 0; i < count; ++i) {
      bytes += std::string(static_cast<std::size_t>(i % 41), static_cast<char>('a' + i % 7)) + std::to_string(i);
      offsets.push_back(static_cast<std::int64_t>(bytes.size()));
    }
  }
  khop::TextKeys keys() const { return {offsets, bytes.data()}; }

  std::string bytes;
  std::vector<std::int64_t> offsets{0};
};

}  // namespace

TEST(strings_get_ids_by_first_appearance_and_are_found_again) {
  const Strings strings(5000);
  khop::IdTable<khop::TextPool> table(0);
  CHECK_EQUAL(table.append(strings.keys()), -1);
  CHECK_EQUAL(table.append(strings.keys()), 0);
  std::vector<std::int64_t> ids(5000), again(5000);
  table.find(strings.keys(), ids);
  table.add(strings.keys(), again);
  for (std::int64_t i = 0; i < 5000; ++i) {
    CHECK_EQUAL(ids[static_cast<std::size_t>(i)], i);
    CHECK_EQUAL(again[static_cast<std::size_t>(i)], i);
  }
  CHECK_EQUAL(table.size(), 5000);
}

TEST(integers_at_the_ends_of_their_range_are_keys) {
  const std::vector<std::int64_t> keys{INT64_MIN, INT64_MAX, 0, -1, 0};
  khop::IdTable<khop::IntegerPool> table(1);
  CHECK_EQUAL(table.append({keys}), 4);
  std::vector<std::int64_t> ids(5);
  table.find({keys}, ids);
  CHECK((ids == std::vector<std::int64_t>{0, 1, 2, 3, 2}));
}

TEST(an_empty_table_finds_nothing) {
  const Strings strings(3);
  const khop::IdTable<khop::TextPool> table(0);
  std::vector<std::int64_t> ids(3);
  table.find(strings.keys(), ids);
  CHECK((ids == std::vector<std::int64_t>{-1, -1, -1}));
}

TEST(a_table_in_files_has_the_same_ids) {
  const Strings strings(20000);
  khop::IdTable<khop::TextPool> table(0), in_memory(0);
  table.spill_beyond(100000, "/tmp");
  std::vector<std::int64_t> ids(20000), expected(20000);
  for (int times = 0; times < 2; ++times) {
    table.add(strings.keys(), ids);
    in_memory.add(strings.keys(), expected);
    CHECK((ids == expected));
  }
  CHECK(table.is_spilled());
  CHECK(!in_memory.is_spilled());
  for (std::int64_t i = 0; i < 20000; ++i) CHECK((table.pool()[i] == in_memory.pool()[i]));
}

TEST(a_folder_that_is_missing_throws_before_keys_are_lost) {
  const Strings strings(5000);
  khop::IdTable<khop::TextPool> table(0);
  table.spill_beyond(0, "/no/such/folder");
  bool has_thrown = false;
  try {
    table.append(strings.keys());
  } catch (const std::system_error&) {
    has_thrown = true;
  }
  CHECK(has_thrown);
  CHECK_EQUAL(table.size(), 0);
}

TEST(a_table_is_full_at_the_last_id_that_fits_in_a_slot) {
  std::vector<std::int64_t> keys(256), ids(255);
  std::iota(keys.begin(), keys.end(), 1000);
  khop::IdTable<khop::IntegerPool, 8> table(0);
  CHECK_EQUAL(table.kMost, 255);
  table.add({std::span(keys).first(255)}, ids);
  bool has_thrown = false;
  try {
    table.append({std::span(keys).last(1)});
  } catch (const std::length_error&) {
    has_thrown = true;
  }
  CHECK(has_thrown);
  CHECK_EQUAL(table.append({std::span(keys).first(1)}), 0);  // a key that is there needs no room
  table.find({std::span(keys).first(255)}, ids);
  for (std::int64_t i = 0; i < 255; ++i) CHECK_EQUAL(ids[static_cast<std::size_t>(i)], i);
}
