// Uniform draws of a frontier's in-edges. docs/randomness.md specifies every pick.
#pragma once

#include <cstdint>
#include <span>

#include "csc.h"

namespace khop {

enum class Replacement { without, with };

struct HopRequest {
  std::span<const std::int64_t> nodes;         // the frontier: rows of the graph, may repeat
  std::span<const std::int64_t> original_ids;  // per row of the graph; empty: ids are original
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
  std::int64_t* edges;    // the same size, positions in `indices`; or null
};

// The number of edges that sample_hop may write: exact, or frontier x fanout if counting costs more than the memory. Throws
// std::invalid_argument for a frontier node that is not a row of the graph, and like sample_hop.
template <class Index>
std::int64_t edge_capacity(const Csc<Index>& graph, const HopRequest& request);

// Throws DamagedArray, which names the row, for a drawn source outside [0, num_sources).
template <class Index>
void check_sources(const HopRequest& request, const std::int64_t* offsets, std::span<const Index> nodes, std::int64_t num_sources);

// Draws for a request that edge_capacity has accepted: writes rows in the frontier's order and returns the number of edges. The
// result depends neither on the number of threads nor on the dispatch level. Throws std::invalid_argument for a row whose indptr is
// outside the graph.
template <class Index>
std::int64_t sample_hop(const Csc<Index>& graph, const HopRequest& request, const HopOutput<Index>& output);

}  // namespace khop
