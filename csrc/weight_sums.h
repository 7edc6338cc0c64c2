// Weights of edges as integers, and their running sums in each row. docs/randomness.md specifies both.
#pragma once

#include <cstdint>
#include <span>

namespace khop {

// sums[e] becomes the sum of the integer weights of e's row up to and including e. Returns -1, or the first position with a
// negative, NaN or infinite weight; the sums are then undefined. Throws std::invalid_argument for a row with 2^31 or more edges,
// whose sum might overflow, and DamagedArray unless indptr splits the weights into rows.
template <class Weight>
std::int64_t weight_sums(std::span<const std::int64_t> indptr, std::span<const Weight> weights, std::int64_t* sums, int threads);

}  // namespace khop
