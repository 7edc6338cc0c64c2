#include "segment.h"

#include "number.h"
#include "segment_rows.h"

#include <algorithm>
#include <vector>

#pragma GCC diagnostic ignored "-Wpsabi"  // see number.h

namespace khop {
namespace {

template <class G>
struct SumOf {
  typename G::Value sum;
};

template <class T>
struct Sum {
  template <class G>
  using State = SumOf<G>;

  const T* x;
  std::int64_t width;
  T* out;

  template <class G>
  KHOP_INLINE void take(SumOf<G>& state, const Edge& edge, std::int64_t column) const {
    state.sum += G::load(x + edge.source * width + column);
  }
  template <class G>
  KHOP_INLINE void finish(const SumOf<G>& state, std::int64_t row, std::int64_t column, std::int64_t) const {
    G::store(out + row * width + column, state.sum);
  }
  KHOP_INLINE void prefetch(std::int64_t source) const { prefetch_row(x + source * width, width); }
};

template <class T>
struct Mean : Sum<T> {
  template <class G>
  KHOP_INLINE void finish(const SumOf<G>& state, std::int64_t row, std::int64_t column, std::int64_t degree) const {
    const auto divisor = static_cast<Accumulator<T>>(std::max<std::int64_t>(degree, 1));
    G::store(this->out + row * this->width + column, state.sum / divisor);
  }
};

template <class T>
struct WeightedSum : Sum<T> {
  const Accumulator<T>* weights;  // one per source row

  template <class G>
  KHOP_INLINE void take(SumOf<G>& state, const Edge& edge, std::int64_t column) const {
    state.sum += G::load(this->x + edge.source * this->width + column) * weights[edge.source];
  }
};

}  // namespace

template <class T, class Index>
void segment_sum(const T* x, std::int64_t width, Csc<Index> edges, T* out, int threads) {
  fold_rows<T>(Sum<T>{x, width, out}, edges, width, threads);
}

template <class T, class Index>
void segment_mean(const T* x, std::int64_t width, Csc<Index> edges, T* out, int threads) {
  fold_rows<T>(Mean<T>{{x, width, out}}, edges, width, threads);
}

template <class T, class Index>
void segment_mean_gradient(const T* gradient, std::int64_t width, Csc<Index> transposed,
                           std::span<const std::int64_t> indptr, T* out, int threads) {
  std::vector<Accumulator<T>> shares(indptr.size() - 1);
  for (std::size_t row = 0; row < shares.size(); ++row) {
    shares[row] = Accumulator<T>{1} / static_cast<Accumulator<T>>(indptr[row + 1] - indptr[row]);  // empty: never read
  }
  fold_rows<T>(WeightedSum<T>{{gradient, width, out}, shares.data()}, transposed, width, threads);
}

template <class Index, class Row>
void transpose(Csc<Index> edges, std::span<std::int64_t> indptr, std::span<Row> rows) {
  std::ranges::fill(indptr, 0);
  for (const Index source : edges.indices) ++indptr[source + 1];
  for (std::size_t source = 1; source < indptr.size(); ++source) indptr[source] += indptr[source - 1];
  std::vector<std::int64_t> next(indptr.begin(), indptr.end() - 1);
  for (std::int64_t row = 0; row < edges.rows(); ++row) {
    for (std::int64_t edge = edges.indptr[row]; edge < edges.indptr[row + 1]; ++edge) {
      rows[next[edges.indices[edge]]++] = static_cast<Row>(row);
    }
  }
}

#define KHOP_SEGMENT(T, Index)                                                         \
  template void segment_sum(const T*, std::int64_t, Csc<Index>, T*, int);              \
  template void segment_mean(const T*, std::int64_t, Csc<Index>, T*, int);             \
  template void segment_mean_gradient(const T*, std::int64_t, Csc<Index>, std::span<const std::int64_t>, T*, int);
KHOP_SEGMENT(float, std::int32_t)
KHOP_SEGMENT(float, std::int64_t)
KHOP_SEGMENT(double, std::int32_t)
KHOP_SEGMENT(double, std::int64_t)
KHOP_SEGMENT(BFloat16, std::int32_t)
KHOP_SEGMENT(BFloat16, std::int64_t)
#undef KHOP_SEGMENT

#define KHOP_TRANSPOSE(Index, Row) template void transpose(Csc<Index>, std::span<std::int64_t>, std::span<Row>);
KHOP_TRANSPOSE(std::int32_t, std::int32_t)
KHOP_TRANSPOSE(std::int32_t, std::int64_t)
KHOP_TRANSPOSE(std::int64_t, std::int32_t)
KHOP_TRANSPOSE(std::int64_t, std::int64_t)
#undef KHOP_TRANSPOSE

}  // namespace khop
