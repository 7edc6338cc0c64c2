// The in-edges with the smallest keys of each frontier row. docs/randomness.md specifies every pick.
#pragma once

#include <cstdint>
#include <span>

#include "sample_hop.h"

namespace khop {

// Random numbers of sources as keys of their edges, the same in all rows: mix64(base ^ t) for node t. With a period above 1, nodes
// for which the high word of mix64(t), reduced to [0, period), is at least `later_from` have the base of the next generation.
struct SourceNumbers {
  std::uint64_t base = 0, later_base = 0;
  std::uint64_t period = 1, later_from = 1;
};

// Keys by source.
template <class Index>
struct KeysOfSources {
  SourceNumbers numbers;
  std::span<const std::int64_t> source_ids;    // per edge, the original id of its source; empty: sources are original ids
  std::span<const std::uint8_t> has_parallel;  // per row of the graph, not 0 if edges share a source; empty: nowhere
};

// Given keys, for example ranks by weight. Ties are resolved in row order.
struct KeysOfEdges {
  std::span<const std::int64_t> keys;  // per edge
};

// Like sample_hop without replacement, with edge_capacity's room: a row with more than `fanout` entries returns those with the
// smallest keys, in row order. Ties are resolved by (original id, row order). Among the entries of a row with the same source,
// number n >= 1 in row order has the key mix64(key ^ n). The result does not depend on the number of threads.
template <class Index>
std::int64_t sample_smallest(const Csc<Index>& graph, const KeysOfSources<Index>& keys, const HopRequest& request,
                             const HopOutput<Index>& output);
template <class Index>
std::int64_t sample_smallest(const Csc<Index>& graph, const KeysOfEdges& keys, const HopRequest& request,
                             const HopOutput<Index>& output);

// Writes 1 for each row in which edges share a source, else 0, and returns the number of ones.
template <class Index>
std::int64_t find_parallel_rows(const Csc<Index>& graph, std::uint8_t* rows, int threads);

}  // namespace khop
