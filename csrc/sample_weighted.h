// Weighted draws of a frontier's in-edges. docs/randomness.md specifies every pick.
#pragma once

#include <cstdint>
#include <span>

#include "outline.h"
#include "sample_hop.h"

namespace khop {

// Like sample_hop, with edge_capacity's room, by weights: `sums` are from weight_sums.h. Edges of weight zero are never drawn, so a
// row may return fewer edges than both its degree and the fanout. The result does not depend on the number of threads. Throws
// DamagedArray if a draw finds sums that do not match their outline.
template <class Index>
std::int64_t sample_weighted(const Csc<Index>& graph, const Rising& sums, const HopRequest& request, const HopOutput<Index>& output);

}  // namespace khop
