// Selection of the edges whose source is a node of a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "node_index.h"

namespace khop {

// Edges grouped by destination: row r is nodes[offsets[r]..offsets[r + 1]).
template <class Id>
struct EdgeRows {
  std::span<const std::int64_t> offsets;
  std::span<const Id> nodes;            // sources
  std::span<const std::int64_t> edges;  // positions in the graph
};

struct KnownEdges {
  std::int64_t* offsets;  // as many as in the input
  std::int32_t* local;    // the sources' local ids; room for all input edges
  std::int64_t* edges;    // the same size
};

// Keeps rows and their order and returns the number of edges. The caller has checked offsets and lengths. Throws
// std::invalid_argument for a source that is not a node of the index's graph.
template <class Id>
std::size_t known_edges(const NodeIndex& index, const EdgeRows<Id>& rows, const KnownEdges& output);

}  // namespace khop
