// Pairs of nodes with common neighbors, and their number: the product of a graph with its transpose, row by row.
#pragma once

#include "csc.h"
#include "memory.h"

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace khop {

// The pairs (row, index), row != index, with at least `min_count` paths: from the row to an entry of its row in `there`, and from
// there to an entry of that entry's row in `back`. Parallel edges are separate paths.
//
// Besides the pairs (a number and a count each), it takes 8 bytes per row, and a number and a count per row and thread, regardless
// of the number of pairs below `min_count`. Indices of `there` are rows of `back`, and vice versa.
template <class Index>
class Cooccurrences {
 public:
  Cooccurrences(Csc<Index> there, Csc<Index> back, std::int64_t min_count, int threads);

  std::int64_t num_pairs() const { return indptr_.back(); }

  // Moves the pairs to the outputs, once: indptr has rows + 1 offsets, indices ascend within a row, counts saturate at 2^31 - 1.
  void move_into(std::span<std::int64_t> indptr, Index* indices, std::int32_t* counts);

 private:
  // The number of paths from a row to an index; invalid for other rows.
  struct Counter {
    std::make_unsigned_t<Index> row;  // counted from 1
    std::uint32_t count;
  };
  struct Part {
    std::int64_t first_row = 0, last_row = 0;
    std::vector<Index> indices;
    std::vector<std::int32_t> counts;
  };

  std::vector<Part> parts_for_threads(int threads) const;
  void collect(Part& part, Counter* counters);
  void count_from(std::int64_t middle, std::int64_t row, Part& part, Counter* counters) const;

  const Csc<Index> there_, back_;
  const std::uint32_t min_count_;
  std::vector<std::int64_t> indptr_;  // rows + 1
  std::vector<Part> parts_;
};

}  // namespace khop
