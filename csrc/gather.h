// Rows of a table by id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace khop {

// A piece of a table: the rows from `first` up to the first of the next piece.
struct Piece {
  const void* rows = nullptr;
  std::int64_t first = 0;
};

// One of several columns to gather by the same ids.
struct GatherColumn {
  enum class Kind { bytes, float16, bfloat16, int8, uint8 };  // copied unchanged, or converted to float32

  Kind kind = Kind::bytes;
  std::vector<Piece> pieces;      // of the table, at least one; the first one begins with row 0
  std::int64_t width = 0;         // of a row: bytes, or numbers
  const float* scales = nullptr;  // or none
  std::int64_t count = 0;         // use only the first `count` ids
  void* out = nullptr;
};

// out[i] = table[ids[i]] for each column, in one pass over the ids, which must be in range; out must not overlap the table.
// Conversion to float32 is exact; values are multiplied by the scales, if given. Sparsely read rows of files (memory.h) are
// prefetched by blocks, on at least 8 threads.
void gather_columns(std::span<const GatherColumn> columns, std::span<const std::int64_t> ids, int threads);

}  // namespace khop
