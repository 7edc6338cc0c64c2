// Which nodes of a type have neighbors in common, and how many: the product of a graph with its transpose, a row at a time.
#pragma once

#include "csc.h"
#include "memory.h"

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace khop {

// The pairs (row, index), row != index, that at least `min_count` ways join: from the row to an entry of its row in `there`, and
// from it to an entry of its row in `back`. Parallel edges are ways of their own.
//
// Beyond the pairs, a number and a count each, it takes 8 bytes a row and per thread a number and a count a row more: never what
// the product would before `min_count` thins it. Indices of `there` are rows of `back`, and the other way round.
template <class Index>
class Cooccurrences {
 public:
  Cooccurrences(Csc<Index> there, Csc<Index> back, std::int64_t min_count, int threads);

  std::int64_t num_pairs() const { return indptr_.back(); }

  // Hands the pairs over, once: indptr takes rows + 1 offsets, indices ascend within a row, counts stop at 2^31 - 1.
  void move_into(std::span<std::int64_t> indptr, Index* indices, std::int32_t* counts);

 private:
  // How often a row has met an index. Of an earlier row it says nothing.
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
