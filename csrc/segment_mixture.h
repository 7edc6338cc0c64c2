// Sums of source rows times several coefficients per edge, and their gradients, for layers with basis decomposition.
#pragma once

#include "number.h"
#include "segment.h"

#include <cstdint>
#include <span>
#include <vector>

namespace khop {

// out[row][basis] = sum of weights[edge][basis] * x[index] over the row's edges, in the order of segment_sum; 0 without edges. x
// has `width` columns, a row of out `bases` * `width`. Offsets and indices are in range.
// The same bits for any number of threads and any instruction set.
template <class T>
void segment_mixture(const T* x, std::int64_t width, const T* weights, std::int64_t bases, Edges edges, T* out, int threads);

// The gradient with respect to x, over the transposed edges: out[source] = sum over its edges, in that order, and the bases of
// weights[position][basis] * gradient[row][basis]. `positions` are those of the edges in `weights`.
template <class T>
void segment_mixture_sources(const T* gradient, std::int64_t width, const T* weights, std::int64_t bases, Edges transposed,
                             std::span<const std::int32_t> positions, T* out, int threads);

// The gradient with respect to the weights: out[edge][basis] = the dot product of x[index] and gradient[row][basis], summed in
// eight lanes of columns, whose halves are then added up.
template <class T>
void segment_mixture_weights(const T* x, std::int64_t width, const T* gradient, std::int64_t bases, Edges edges, T* out,
                             int threads);

// The edges of one type, from sources that are rows `first`, first + 1, ... of a joined matrix.
struct TypedEdges {
  Edges edges;
  std::int32_t first;
};

// Joins edges by destination: within a row by type, then in edge order. `relations` gets the number of each edge's type. All types
// have the same number of rows; `indptr` has rows + 1 entries, and `indices` and `relations` have room for all edges.
void merge_edges(const std::vector<TypedEdges>& types, std::span<std::int64_t> indptr, std::span<std::int32_t> indices,
                 std::span<std::int32_t> relations, int threads);

}  // namespace khop
