// Softmax over the in-edges of each destination, and its gradient.
#pragma once

#include <cstdint>
#include <span>

namespace khop {

// out[edge][head] = exp(score) / sum of exp(scores) over the edges of the same row, per head; computed relative to the row's
// largest score, BFloat16 and Float16 in float32. Row i has the edges [indptr[i], indptr[i + 1]).
// The same bits for any number of threads and any instruction set.
template <class T>
void segment_softmax(const T* scores, std::int64_t heads, std::span<const std::int64_t> indptr, T* out, int threads);

// The gradient with respect to the scores: out = result * (gradient - sum of result * gradient over the row).
template <class T>
void segment_softmax_gradient(const T* result, const T* gradient, std::int64_t heads, std::span<const std::int64_t> indptr,
                              T* out, int threads);

}  // namespace khop
