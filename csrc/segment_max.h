// The largest source row, column by column, over the in-edges of each destination, and its gradient.
#pragma once

#include "segment.h"

#include <cstdint>

namespace khop {

// out[row] = the largest of x[index] over the row's edges, per column; 0 for a row without edges; NaN if one is NaN. winners[row],
// unless null, becomes its source, the first in edge order for ties, or -1.
// Offsets and indices are in range.
template <class T>
void segment_max(const T* x, std::int64_t width, Edges edges, T* out, std::int32_t* winners, int threads);

// The gradient with respect to x, over the transposed edges: it goes to the winner.
template <class T>
void segment_max_gradient(const T* gradient, std::int64_t width, Edges transposed, const std::int32_t* winners, T* out,
                          int threads);

}  // namespace khop
