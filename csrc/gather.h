// Rows of a table by id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace khop {

// Some rows of a table that lies in pieces: from `first` on, up to those of the next piece.
struct Piece {
  const void* rows = nullptr;
  std::int64_t first = 0;
};

// One of several columns that are gathered by the same ids.
struct GatherColumn {
  enum class Kind { bytes, float16, bfloat16, int8, uint8 };  // copied as they are, or to float32

  Kind kind = Kind::bytes;
  std::vector<Piece> pieces;      // of the table, one at least; the first one's rows begin with 0
  std::int64_t width = 0;         // of a row: bytes, or numbers
  const float* scales = nullptr;  // or none
  std::int64_t count = 0;         // only the first so many ids
  void* out = nullptr;
};

// out[i] = table[ids[i]] for each column, in one pass over the ids, which are in range; out does not overlap the table. Numbers
// become float32 exactly, each multiplied by its column's scale where there are scales. Rows that are read sparsely from a file
// (memory.h) are requested a block at a time, on at least 8 threads.
void gather_columns(std::span<const GatherColumn> columns, std::span<const std::int64_t> ids, int threads);

}  // namespace khop
