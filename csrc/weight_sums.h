// Weights of edges as whole numbers, and their running sums in each row. docs/randomness.md specifies both.
#pragma once

#include <cstdint>
#include <span>

namespace khop {

// sums[e] becomes the whole weights of e's row up to and including e. Returns the first position whose weight is negative, not a
// number or infinite, or -1; where there is one, the sums hold nothing of use. Throws
// std::invalid_argument for a row of 2^31 edges and more, whose sum might not fit, and DamagedArray unless indptr cuts the weights
// into rows.
template <class Weight>
std::int64_t weight_sums(std::span<const std::int64_t> indptr, std::span<const Weight> weights, std::int64_t* sums, int threads);

}  // namespace khop
