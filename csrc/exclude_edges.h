// Removal of drawn edges between given pairs of nodes.
#pragma once

#include <cstdint>
#include <span>

namespace khop {

// Row i has edges [offsets[i], offsets[i + 1]) into node rows[i].
template <class Index>
struct DrawnEdges {
  std::span<const std::int64_t> rows;
  std::span<const std::int64_t> offsets;  // rows + 1
  std::span<const Index> sources;
  std::span<const std::int64_t> ids;  // of each edge; empty: not requested
};

struct NodePairs {
  std::span<const std::int64_t> sources, destinations;  // of the same length, repeats allowed
};

template <class Index>
struct KeptEdges {
  std::int64_t* offsets;  // rows + 1
  Index* sources;         // room for all drawn edges
  std::int64_t* ids;      // the same size, or null
};

// Writes the edges that are not in `excluded`, in order, and returns their number. Reads a bit per row, and makes a table lookup
// per edge of the rows of excluded destinations.
template <class Index>
std::int64_t exclude_edges(const DrawnEdges<Index>& drawn, const NodePairs& excluded, const KeptEdges<Index>& kept);

}  // namespace khop
