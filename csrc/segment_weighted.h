// Weighted sums of source rows over the in-edges of each destination, by heads, and their gradients.
#pragma once

#include "number.h"
#include "segment.h"

#include <cstdint>

namespace khop {

// out[row] = sum of weights[edge][head of the column] * x[index] over the row's edges, in the order of segment_sum; 0 without
// edges. The columns are split evenly among the heads. Offsets and indices are in range, and `heads` divides `width`.
// BFloat16 and Float16 are summed in float32. The same bits for any number of threads and any instruction set.
template <class T>
void segment_weighted_sum(const T* x, std::int64_t width, const Accumulator<T>* weights, std::int64_t heads, Edges edges, T* out,
                          int threads);

// The gradient with respect to the weights: out[edge][head] = the dot product of the head's columns of x[index] and of
// gradient[row]. Lane i of kDotLanes sums the columns i, i + kDotLanes, ... of the head; then the upper half of the lanes is
// added to the lower half until one lane is left.
template <class T>
void segment_weighted_sum_gradient(const T* x, std::int64_t width, const T* gradient, std::int64_t heads, Edges edges,
                                   Accumulator<T>* out, int threads);

template <class T>
inline constexpr std::int64_t kDotLanes = 64 / sizeof(Accumulator<T>);

}  // namespace khop
