// The largest source row, column by column, over the in-edges of each destination, and its gradient.
#pragma once

#include "csc.h"

#include <cstdint>

namespace khop {

// out[row] = the largest of x[index] over the row's edges, per column; 0 for a row without edges; NaN where one is NaN.
// winners[row], where not null, becomes the source that it is from, the first in edge order among equals, or -1.
// Offsets and indices are in range.
template <class T, class Index>
void segment_max(const T* x, std::int64_t width, Csc<Index> edges, T* out, Index* winners, int threads);

// The gradient with respect to x, over the transposed edges: the winner takes it all.
template <class T, class Row, class Index>
void segment_max_gradient(const T* gradient, std::int64_t width, Csc<Row> transposed, const Index* winners, T* out,
                          int threads);

}  // namespace khop
