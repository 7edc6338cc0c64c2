// A borrowed graph: row r holds the in-edges of destination r.
#pragma once

#include <cstdint>
#include <span>

namespace khop {

template <class Index>
struct Csc {
  std::span<const std::int64_t> indptr;  // rows + 1
  std::span<const Index> indices;        // edges, ids of source nodes

  std::int64_t rows() const { return static_cast<std::int64_t>(indptr.size()) - 1; }
};

}  // namespace khop
