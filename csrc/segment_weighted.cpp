#include "segment_weighted.h"

#include "segment_rows.h"
#include "simd.h"

#include <cstring>
#include <vector>

#pragma GCC diagnostic ignored "-Wpsabi"  // see number.h

namespace khop {
namespace {

template <class T>
struct WeightedSum {
  static constexpr int kMostBytes = 64;
  static constexpr int kWideTileBytes = 0;
  template <class G>
  using State = SumOf<G>;

  const T* x;
  std::int64_t width;
  const Accumulator<T>* weights;
  std::int64_t heads;
  std::int64_t of_head;         // columns
  const std::int32_t* head_of;  // by column
  T* out;

  template <class G>
  KHOP_INLINE void take(SumOf<G>& state, const Edge& edge, Column column) const {
    const auto value = G::load(x + (edge.source * width + column.first) + column.offset);
    const Accumulator<T>* of_edge = weights + edge.index * heads;
    if constexpr (G::count > 1) {
      if (heads > 1 && of_head % G::count != 0) {  // a group may have columns of several heads
        Accumulator<T> each[G::count];
#pragma GCC unroll 1
        for (std::int64_t lane = 0; lane < G::count; ++lane) each[lane] = of_edge[head_of[column + lane]];
        state.sum += value * load_lanes<typename G::Value>(each);
        return;
      }
    }
    state.sum += value * of_edge[head_of[column]];
  }
  template <class G>
  KHOP_INLINE void finish(const SumOf<G>& state, std::int64_t row, std::int64_t column, std::int64_t) const {
    G::store(out + row * width + column, state.sum);
  }
  KHOP_INLINE void prefetch(std::int64_t source, Column column) const {
    __builtin_prefetch(x + (source * width + column.first) + column.offset);
  }
};

// Dot products of the rows at both ends of each edge, head by head.
template <class T, int bytes>
struct DotsOfEdges {
  using G = Group<T, bytes>;

  static KHOP_INLINE void run(const T* x, const T* gradient, std::int64_t width, std::int64_t heads, const Edges* edges,
                              std::int64_t begin, std::int64_t end, Accumulator<T>* out) {
    const std::int64_t* indptr = edges->indptr.data();
    const std::int32_t* indices = edges->indices.data();
    const std::int64_t of_head = width / heads, last_edge = indptr[end];
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t edge = indptr[row]; edge < indptr[row + 1]; ++edge) {
        if (edge + kAhead < last_edge) prefetch_row(x + indices[edge + kAhead] * width, width);
        for (std::int64_t head = 0; head < heads; ++head) {
          const std::int64_t first = head * of_head;
          out[edge * heads + head] = dot(x + indices[edge] * width + first, gradient + row * width + first, of_head);
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kGroups = kDotLanes<T> / G::count;
  using Sums = typename G::Value[kGroups];

  static KHOP_INLINE void add(Sums& sums, const T* a, const T* b) {
    for (std::int64_t group = 0; group < kGroups; ++group) {
      sums[group] += G::load(a + group * G::count) * G::load(b + group * G::count);
    }
  }

  static KHOP_INLINE Accumulator<T> dot(const T* a, const T* b, std::int64_t count) {
    Sums sums{};
    std::int64_t at = 0;
    for (; at + kDotLanes<T> <= count; at += kDotLanes<T>) add(sums, a + at, b + at);
    if (at < count) {
      T rest_a[kDotLanes<T>]{}, rest_b[kDotLanes<T>]{};  // products of zeros do not change a sum
      std::memcpy(rest_a, a + at, static_cast<std::size_t>(count - at) * sizeof(T));
      std::memcpy(rest_b, b + at, static_cast<std::size_t>(count - at) * sizeof(T));
      add(sums, rest_a, rest_b);
    }
    for (std::int64_t half = kGroups / 2; half > 0; half /= 2) {
      for (std::int64_t group = 0; group < half; ++group) sums[group] += sums[group + half];
    }
    typename G::Value sum = sums[0];
    for (std::int64_t half = G::count / 2; half > 0; half /= 2) {
      for (std::int64_t lane = 0; lane < half; ++lane) sum[lane] += sum[lane + half];
    }
    return sum[0];
  }
};

template <class T>
struct Dots {
  template <int bytes>
  using Of = DotsOfEdges<T, bytes>;
};

}  // namespace

template <class T>
void segment_weighted_sum(const T* x, std::int64_t width, const Accumulator<T>* weights, std::int64_t heads, Edges edges, T* out,
                          int threads) {
  if (width == 0) return;
  std::vector<std::int32_t> head_of(static_cast<std::size_t>(width));
  const std::int64_t of_head = width / heads;
  for (std::int64_t column = 0; column < width; ++column) head_of[column] = static_cast<std::int32_t>(column / of_head);
  fold_rows<T>(WeightedSum<T>{x, width, weights, heads, of_head, head_of.data(), out}, edges, width, threads);
}

template <class T>
void segment_weighted_sum_gradient(const T* x, std::int64_t width, const T* gradient, std::int64_t heads, Edges edges,
                                   Accumulator<T>* out, int threads) {
  if (heads == 0) return;
  const auto count = static_cast<std::int64_t>(edges.indices.size());
  const int parts = spare_parts(threads, count * (width + heads) * static_cast<std::int64_t>(sizeof(T)), kPartBytes);
  parallel_parts(threads, parts, [&](int part) {
    const std::int64_t begin = first_row(edges.indptr, part, parts), end = first_row(edges.indptr, part + 1, parts);
    run_widest<Dots<T>::template Of>(x, gradient, width, heads, &edges, begin, end, out);
  });
}

#define KHOP_SEGMENT_WEIGHTED(T)                                                                                            \
  template void segment_weighted_sum(const T*, std::int64_t, const Accumulator<T>*, std::int64_t, Edges, T*, int);          \
  template void segment_weighted_sum_gradient(const T*, std::int64_t, const T*, std::int64_t, Edges, Accumulator<T>*, int);
KHOP_SEGMENT_WEIGHTED(float)
KHOP_SEGMENT_WEIGHTED(double)
KHOP_SEGMENT_WEIGHTED(BFloat16)
KHOP_SEGMENT_WEIGHTED(Float16)
#undef KHOP_SEGMENT_WEIGHTED

}  // namespace khop
