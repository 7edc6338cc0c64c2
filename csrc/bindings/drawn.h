// What the bindings of every draw share: the request as it comes from Python, and the buffers it is answered into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>

#include "bindings.h"
#include "sample_hop.h"

namespace khop::bindings {

using Ids = In<std::int64_t>;

inline std::span<const std::int64_t> optional_span(const std::optional<Ids>& ids) {
  return ids ? span_of(*ids) : std::span<const std::int64_t>{};
}

template <class Index>
using Drawn = std::tuple<Out<std::int64_t>, Out<Index>, std::optional<Out<std::int64_t>>>;

// Offsets, nodes and, where wanted, edges that `draw(graph, request, output)` writes, without the GIL.
template <class Index, class Draw>
Drawn<Index> drawn_by(const Csc<Index>& graph, const HopRequest& request, bool edge_ids, const Draw& draw) {
  if (!request.ranges.empty() && request.ranges.size() != 2 * request.nodes.size()) {
    throw std::invalid_argument("ranges: a begin and an end per frontier row are needed");
  }
  std::optional<Buffer<std::int64_t>> offsets, edges;
  std::optional<Buffer<Index>> nodes;
  std::size_t count = 0;
  {
    const nb::gil_scoped_release release;
    const auto capacity = static_cast<std::size_t>(edge_capacity(graph, request));
    offsets.emplace(request.nodes.size() + 1);
    nodes.emplace(capacity);
    if (edge_ids) edges.emplace(capacity);
    const HopOutput<Index> output{offsets->data(), nodes->data(), edges ? edges->data() : nullptr};
    count = static_cast<std::size_t>(draw(graph, request, output));
  }
  std::optional<Out<std::int64_t>> positions;
  if (edges) positions = edges->tensor({count});
  return {offsets->tensor({request.nodes.size() + 1}), nodes->tensor({count}), positions};
}

}  // namespace khop::bindings
