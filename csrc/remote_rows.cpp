#include "remote_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace khop {
namespace {

constexpr int kDigitBits = 11;
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;
constexpr std::size_t kFew = 512;  // at most this many are sorted by comparison

struct Asked {
  std::int64_t id;
  std::int64_t at;  // its position among the wanted ids
};

// Sorts by id. `spare` is overwritten.
void sort_by_id(std::vector<Asked>& rows, std::vector<Asked>& spare, std::int64_t largest) {
  if (rows.size() < kFew) {
    std::sort(rows.begin(), rows.end(), [](const Asked& a, const Asked& b) { return a.id < b.id; });
    return;
  }
  spare.resize(rows.size());
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(largest)));
  for (int shift = 0; shift < bits; shift += kDigitBits) {
    std::array<std::size_t, kDigits> next{};
    const auto digit = [shift](const Asked& row) { return static_cast<std::size_t>(row.id >> shift) & (kDigits - 1); };
    for (const Asked& row : rows) ++next[digit(row)];
    std::size_t begin = 0;
    for (std::size_t& count : next) begin += std::exchange(count, begin);
    for (const Asked& row : rows) spare[next[digit(row)]++] = row;
    rows.swap(spare);
  }
}

}  // namespace

std::int64_t remote_rows(std::span<const std::int64_t> ids, const RowsHere& here, std::int64_t* places, std::int64_t* asked) {
  // Per thread, reused between batches: allocating memory costs more than sorting.
  thread_local std::vector<Asked> rows, spare;
  rows.clear();
  const std::int64_t held = here.end - here.first;
  std::int64_t largest = 0;
  for (std::size_t at = 0; at < ids.size(); ++at) {
    const std::int64_t id = ids[at];
    if (id >= here.first && id < here.end) {
      places[at] = id - here.first;
    } else if (!here.slots.empty() && here.slots[at] >= 0) {
      if (here.slots[at] >= here.kept) {
        throw std::invalid_argument("slot " + std::to_string(here.slots[at]) + " at position " + std::to_string(at) + ": " +
                                    std::to_string(here.kept) + " rows are kept");
      }
      places[at] = held + here.slots[at];
    } else {
      if (id < 0) throw std::invalid_argument("id " + std::to_string(id) + " at position " + std::to_string(at) + ": is negative");
      rows.push_back({id, static_cast<std::int64_t>(at)});
      largest = std::max(largest, id);
    }
  }
  sort_by_id(rows, spare, largest);
  std::int64_t count = 0;
  for (const Asked& row : rows) {
    if (count == 0 || asked[count - 1] != row.id) asked[count++] = row.id;
    places[row.at] = held + here.kept + count - 1;
  }
  return count;
}

}  // namespace khop
