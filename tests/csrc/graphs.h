// Small graphs for the tests of sampling.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "csc.h"

namespace khop::testing {

// Rows of the given degrees; edge e leads to node e % rows, so that a position is told from a node.
template <class Index>
struct Rows {
  explicit Rows(const std::vector<std::int64_t>& degrees) : indptr(degrees.size() + 1, 0) {
    std::partial_sum(degrees.begin(), degrees.end(), indptr.begin() + 1);
    for (std::int64_t edge = 0; edge < indptr.back(); ++edge) {
      indices.push_back(static_cast<Index>(edge % static_cast<std::int64_t>(degrees.size())));
    }
  }

  Csc<Index> csc() const { return {indptr, indices}; }

  std::vector<std::int64_t> indptr;
  std::vector<Index> indices;
};

}  // namespace khop::testing
