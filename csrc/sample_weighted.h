// In-edges of a frontier, each as likely as its weight says. docs/randomness.md specifies every pick.
#pragma once

#include <cstdint>
#include <span>

#include "outline.h"
#include "sample_hop.h"

namespace khop {

// As sample_hop, with edge_capacity's room, by weights: `sums` are those of weight_sums.h. Edges of weight zero are
// never drawn, so that a row may give fewer edges than it has and than are asked for. The result does not depend on the number of
// threads. Throws DamagedArray for sums that do not rise within a row as their outline says, where a draw comes upon it.
template <class Index>
std::int64_t sample_weighted(const Csc<Index>& graph, const Rising& sums, const HopRequest& request, const HopOutput<Index>& output);

}  // namespace khop
