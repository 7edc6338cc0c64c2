// Of many edges, those whose source is among the nodes of a batch.
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
  std::int64_t* offsets;  // as many as came in
  std::int32_t* local;    // the sources' local ids; room for as many as came in
  std::int64_t* edges;    // the same room
};

// Keeps rows and their order and returns the number of edges. The caller has checked offsets and lengths. Throws std::invalid_argument
// where a source is not a node of the index's graph.
template <class Id>
std::size_t known_edges(const NodeIndex& index, const EdgeRows<Id>& rows, const KnownEdges& output);

}  // namespace khop
