// Rows of a table by id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace khop {

// out[i] = table[ids[i]], rows of row_bytes bytes. Ids are in range; out does not overlap the table.
void gather(const std::byte* table, std::int64_t row_bytes, std::span<const std::int64_t> ids, std::byte* out, int threads);

}  // namespace khop
