// Destinations that are no partners of a source, one draw each and no rejection. docs/randomness.md specifies every pick.
#pragma once

#include <cstdint>
#include <span>

namespace khop {

// What may be drawn, in an order of its own: candidate r is the node of rank r.
struct Candidates {
  std::int64_t count;
  std::span<const std::int64_t> weights_before;  // count + 1 prefix sums of the candidates' weights; empty: each weighs 1
};

// The partners of every source as ranks, ascending and distinct within a row.
template <class Index>
struct Partners {
  std::span<const std::int64_t> indptr;          // sources + 1
  std::span<const Index> ranks;
  std::span<const std::int64_t> weights_before;  // per rank, the weight of those before it in its row; empty: each weighs 1
};

struct NegativeRequest {
  std::span<const std::int64_t> sources;    // of the links; rows of Partners
  std::span<const std::int64_t> positions;  // of the links, in the epoch's global order
  std::span<const std::int64_t> limits;     // per link, only ranks below; empty: all
  std::int64_t per_positive = 1;
  std::uint64_t key = 0;
  std::uint32_t stream = 0;
};

// Writes per_positive ranks for each link and returns -1, or the number of the first link for which nothing may be drawn.
// Throws std::invalid_argument for a source or a limit out of range, and where rows or ranks of partners, or weights, are such that
// a pick would be no candidate. Costs one binary search per draw among its source's partners and, where weighted, one among the candidates.
template <class Index>
std::int64_t draw_negatives(const Candidates& candidates, const Partners<Index>& partners, const NegativeRequest& request,
                            std::int64_t* ranks);

}  // namespace khop
