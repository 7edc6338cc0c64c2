// Rows of a table with others put between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace khop {

// Copies `rows` rows of `width` bytes to `out`, with row i of `added` before row at[i] of the table, and after the added rows
// before it. Returns -1, or the first i where at[i] is less than the one before it or not in [0, rows]; then `out` holds
// nothing of use.
std::int64_t insert_rows(const std::byte* table, std::int64_t rows, std::size_t width, std::span<const std::int64_t> at,
                         const std::byte* added, std::byte* out);

}  // namespace khop
