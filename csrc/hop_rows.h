// The rows of a hop: the graph's entries from which each frontier row draws.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "checks.h"
#include "csc.h"
#include "sample_hop.h"

namespace khop {

// Throws std::invalid_argument for a frontier node that is not a row of the graph.
template <class Index>
void check_nodes(const Csc<Index>& graph, std::span<const std::int64_t> nodes) {
  const auto rows = static_cast<std::uint64_t>(graph.rows());
  std::uint64_t largest = 0;  // negative nodes are greater than all others
  for (const std::int64_t node : nodes) largest = std::max(largest, static_cast<std::uint64_t>(node));
  if (nodes.empty() || largest < rows) return;
  const auto stranger = std::ranges::find_if(nodes, [&](std::int64_t node) { return static_cast<std::uint64_t>(node) >= rows; });
  throw std::invalid_argument("frontier node " + std::to_string(*stranger) + ": not in [0, " + std::to_string(rows) +
                              "), the graph's rows");
}

struct Row {
  std::int64_t begin;
  std::int64_t degree;
};

template <class Index>
[[noreturn, gnu::cold, gnu::noinline]] void refuse_row(const Csc<Index>& graph, std::int64_t node, std::int64_t begin, std::int64_t end,
                                                       bool whole) {
  const std::string row = "row " + std::to_string(node);
  const std::string problem = " begins at " + std::to_string(begin) + " and ends at " + std::to_string(end) +
                              ": must not descend, and must lie in [0, " + std::to_string(graph.indices.size()) + "], the edges";
  if (whole) throw DamagedArray("indptr", row + problem);
  throw std::invalid_argument("range in " + row + problem);
}

// The range of frontier row i if the request has ranges, else the whole row of its node.
template <class Index>
Row row_at(const Csc<Index>& graph, const HopRequest& request, std::int64_t i) {
  const std::int64_t node = request.nodes.data()[i];
  const bool whole = request.ranges.empty();
  const std::int64_t* const ends = whole ? graph.indptr.data() + node : request.ranges.data() + 2 * i;
  const std::int64_t begin = ends[0], end = ends[1];
  if (begin < 0 || begin > end || end > static_cast<std::int64_t>(graph.indices.size())) {
    refuse_row(graph, node, begin, end, whole);
  }
  return {begin, end - begin};
}

inline bool takes_whole_row(const HopRequest& request, std::int64_t degree) {
  if (request.fanout < 0) return true;
  return request.replacement == Replacement::without ? degree <= request.fanout : degree == 0;
}

// The number of edges that frontier rows [first, last) draw; an upper bound if weights may be zero.
template <class Index>
std::int64_t count_edges(const Csc<Index>& graph, const HopRequest& request, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t ahead = 32;  // rows whose pointers are prefetched
  const std::int64_t* const nodes = request.nodes.data();
  std::int64_t edges = 0;
  for (std::int64_t i = first; i < last; ++i) {
    if (i + ahead < last) __builtin_prefetch(graph.indptr.data() + nodes[i + ahead]);
    const std::int64_t degree = row_at(graph, request, i).degree;
    edges += takes_whole_row(request, degree) ? degree : request.fanout;
  }
  return edges;
}

}  // namespace khop
