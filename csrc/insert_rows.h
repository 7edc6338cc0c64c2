// Insertion of rows into a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace khop {

// Copies `rows` rows of `width` bytes to `out`, with row i of `added` before row at[i] of the table, after earlier added rows.
// Returns -1, or the first i for which at[i] is less than at[i - 1] or not in [0, rows]; `out` is then undefined.
std::int64_t insert_rows(const std::byte* table, std::int64_t rows, std::size_t width, std::span<const std::int64_t> at,
                         const std::byte* added, std::byte* out);

}  // namespace khop
