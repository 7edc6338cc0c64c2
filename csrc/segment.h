// Sums of source rows over the in-edges of each destination, and their gradients.
#pragma once

#include "csc.h"


#include <cstdint>
#include <span>

namespace khop {

// Edges of a batch, with 32-bit ids. Wider ids that fit are narrowed before.
using Edges = Csc<std::int32_t>;

// out[row] = sum of x[index] over the row's edges, in the order of RunSums (segment_rows.h); 0 for a row without edges. x and out
// have `width` columns; offsets and indices are in range.
// BFloat16 and Float16 are summed in float32. The same bits for any number of threads and any instruction set.
template <class T>
void segment_sum(const T* x, std::int64_t width, Edges edges, T* out, int threads);

// Like segment_sum, divided by the row's number of edges.
template <class T>
void segment_mean(const T* x, std::int64_t width, Edges edges, T* out, int threads);

// The gradient of segment_mean with respect to x: over the transposed edges, gradient rows divided by their number of edges.
// `indptr` is that of segment_mean's edges.
template <class T>
void segment_mean_gradient(const T* gradient, std::int64_t width, Edges transposed,
                           std::span<const std::int64_t> indptr, T* out, int threads);

// Transposes the edges by a stable counting sort: row s of the result lists the rows with index s, in edge order. indptr has
// sources + 1 entries.
void transpose(Edges edges, std::span<std::int64_t> indptr, std::span<std::int32_t> rows);

}  // namespace khop
