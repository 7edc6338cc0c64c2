#include "remote_rows.h"

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "check.h"

namespace {

using Ids = std::vector<std::int64_t>;

// Against sets, with as many ids; slots of every fourth id where some are kept.
void agrees(std::size_t count, std::int64_t spread, bool has_kept) {
  constexpr std::int64_t first = 40, end = 90, kept = 6;
  Ids ids(count), slots(has_kept ? count : 0, -1);
  for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int64_t>(i * i * 2654435761U + i) % spread;
  std::set<std::int64_t> wanted;
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_kept = has_kept && ids[i] % 4 == 0;
    if (is_kept) slots[i] = ids[i] % kept;
    if (!is_kept && (ids[i] < first || ids[i] >= end)) wanted.insert(ids[i]);
  }
  Ids places(count), asked(count);
  const khop::RowsHere here{first, end, slots, has_kept ? kept : 0};
  asked.resize(static_cast<std::size_t>(khop::remote_rows(ids, here, places.data(), asked.data())));
  CHECK(asked == Ids(wanted.begin(), wanted.end()));
  std::map<std::int64_t, std::int64_t> number;
  for (const std::int64_t id : asked) number.emplace(id, static_cast<std::int64_t>(number.size()));
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t place = ids[i] - first;
    if (place < 0 || place >= end - first) {
      place = end - first + (has_kept && ids[i] % 4 == 0 ? slots[i] : here.kept + number.at(ids[i]));
    }
    CHECK_EQUAL(places[i], place);
  }
}

}  // namespace

TEST(every_row_from_elsewhere_is_asked_for_once_and_has_its_place) {
  for (const std::size_t count : {0, 1, 511, 512, 5000}) {
    for (const std::int64_t spread : {std::int64_t{1}, std::int64_t{200}, std::int64_t{3000}, std::int64_t{1} << 61}) {
      agrees(count, spread, false);
      agrees(count, spread, true);
    }
  }
}
