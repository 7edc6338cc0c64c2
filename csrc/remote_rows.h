// Remote rows among wanted rows, and the position of each row after the remote ones are received.
#pragma once

#include <cstdint>
#include <span>

namespace khop {

// The local rows of a table: those of ids [first, end), and `kept` cached rows in slots.
struct RowsHere {
  std::int64_t first = 0;
  std::int64_t end = 0;
  std::span<const std::int64_t> slots;  // of each wanted id, or -1; empty: no cached rows
  std::int64_t kept = 0;
};

// Writes the distinct ids of remote rows to `asked`, ascending, and returns their number. Writes the position of each wanted id
// (nonnegative) to `places`, counting the rows of [first, end), then cached rows, then remote rows. `places` and `asked` have room
// for all ids. Throws std::invalid_argument for an id or a slot out of range.
std::int64_t remote_rows(std::span<const std::int64_t> ids, const RowsHere& here, std::int64_t* places, std::int64_t* asked);

}  // namespace khop
