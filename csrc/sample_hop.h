// In-edges of a frontier, drawn uniformly. docs/randomness.md specifies every pick.
#pragma once

#include <cstdint>
#include <span>

#include "csc.h"

namespace khop {

enum class Replacement { without, with };

struct HopRequest {
  std::span<const std::int64_t> nodes;         // the frontier: rows of the graph, duplicates allowed
  std::span<const std::int64_t> original_ids;  // per row of the graph; empty: ids are original already
  std::span<const std::int64_t> trees;         // per frontier row; empty: no disjoint trees
  std::int64_t fanout = 0;                     // -1: the whole row
  Replacement replacement = Replacement::without;
  std::uint64_t key = 0;
  std::uint32_t stream = 0;
  int threads = 1;
  std::span<const std::int64_t> ranges = {};  // begin and end of each frontier row's entries; empty: whole rows
};

template <class Index>
struct HopOutput {
  std::int64_t* offsets;  // frontier + 1
  Index* nodes;           // room for edge_capacity() entries
  std::int64_t* edges;    // the same room, positions in `indices`; or null, not wanted
};

// How many edges sample_hop may write: exact, or frontier x fanout where counting would cost more than the room.
// Throws std::invalid_argument for a frontier node that is no row of the graph, and as sample_hop does.
template <class Index>
std::int64_t edge_capacity(const Csc<Index>& graph, const HopRequest& request);

// Throws DamagedArray, which names the row, for a source that was drawn and is none of `num_sources` nodes.
template <class Index>
void check_sources(const HopRequest& request, const std::int64_t* offsets, std::span<const Index> nodes, std::int64_t num_sources);

// Draws for a request that edge_capacity has accepted: writes row after row in the frontier's order and returns the number of
// edges. The result depends neither on the number of threads nor on the dispatch level. Throws std::invalid_argument for a row
// whose indptr does not lie inside the graph.
template <class Index>
std::int64_t sample_hop(const Csc<Index>& graph, const HopRequest& request, const HopOutput<Index>& output);

}  // namespace khop
