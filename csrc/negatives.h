// Draws of destinations that are not partners of a source, without rejection. docs/randomness.md specifies every pick.
#pragma once

#include <cstdint>
#include <span>

namespace khop {

// The nodes that may be drawn, in some order: candidate r is the node of rank r.
struct Candidates {
  std::int64_t count;
  std::span<const std::int64_t> weights_before;  // count + 1 prefix sums of the candidates' weights; empty: each weighs 1
};

// The partners of every source as ranks, ascending and distinct within a row.
template <class Index>
struct Partners {
  std::span<const std::int64_t> indptr;          // sources + 1
  std::span<const Index> ranks;
  std::span<const std::int64_t> weights_before;  // per rank, the weight of earlier ranks in its row; empty: each weighs 1
};

struct NegativeRequest {
  std::span<const std::int64_t> sources;    // of the links; rows of Partners
  std::span<const std::int64_t> positions;  // of the links, in the epoch's global order
  std::span<const std::int64_t> limits;     // per link, only ranks below it may be drawn; empty: all
  std::int64_t per_positive = 1;
  std::uint64_t key = 0;
  std::uint32_t stream = 0;
};

// Writes per_positive ranks for each link and returns -1, or the number of the first link without drawable candidates. Throws
// std::invalid_argument for a source or a limit out of range, and for invalid partners or weights. A draw takes a binary search
// among its source's partners and, with weights, one among the candidates.
template <class Index>
std::int64_t draw_negatives(const Candidates& candidates, const Partners<Index>& partners, const NegativeRequest& request,
                            std::int64_t* ranks);

}  // namespace khop
