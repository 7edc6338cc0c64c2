// Which of the rows that are wanted lie elsewhere, and where each will lie once they are here.
#pragma once

#include <cstdint>
#include <span>

namespace khop {

// What of a table is here: the rows of ids [first, end), and `kept` others, those of some ids at a slot.
struct RowsHere {
  std::int64_t first = 0;
  std::int64_t end = 0;
  std::span<const std::int64_t> slots;  // of each wanted id, or -1; empty: none is kept
  std::int64_t kept = 0;
};

// Writes the ids whose rows are not here to `asked`, ascending, each once, and says how many they are; and for every wanted id,
// none of them negative, to `places` its row's number where the rows of [first, end), those that are kept and those that are
// asked for stand one after another. `places` and `asked` have room for every id.
// Throws std::invalid_argument for an id or a slot out of range.
std::int64_t remote_rows(std::span<const std::int64_t> ids, const RowsHere& here, std::int64_t* places, std::int64_t* asked);

}  // namespace khop
