#include "segment.h"

#include "number.h"
#include "segment_rows.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#pragma GCC diagnostic ignored "-Wpsabi"  // see number.h

namespace khop {
namespace {

// The final operation on a row's sum.
enum class Result { sum, mean };

// The weight of every source of a sum without weights. Products with it are exact: a branch would cost registers.
template <class T>
constexpr Accumulator<T> kOne = 1;

// The sum of weights[source & mask] * x[source].
template <class T>
struct Sum {
  static constexpr int kMostBytes = 64;
  static constexpr int kWideTileBytes = std::is_same_v<T, float> ? 416 : 0;  // 100 columns, at most 104
  template <class G>
  using State = SumOf<G>;

  const T* x;
  std::int64_t width;
  const Accumulator<T>* weights;
  std::int64_t mask;
  Result result;
  T* out;

  Sum(const T* of, std::int64_t columns, Result wanted, T* to)
      : x(of), width(columns), weights(&kOne<T>), mask(0), result(wanted), out(to) {}
  Sum(const T* of, std::int64_t columns, const Accumulator<T>* of_sources, T* to)
      : x(of), width(columns), weights(of_sources), mask(-1), result(Result::sum), out(to) {}

  template <class G>
  KHOP_INLINE void take(SumOf<G>& state, const Edge& edge, Column column) const {
    state.sum += G::load(x + (edge.source * width + column.first) + column.offset) * weights[edge.source & mask];
  }
  template <class G>
  KHOP_INLINE void finish(const SumOf<G>& state, std::int64_t row, std::int64_t column, std::int64_t degree) const {
    const std::int64_t divisor = result == Result::mean && degree > 0 ? degree : 1;
    G::store(out + row * width + column, state.sum / static_cast<Accumulator<T>>(divisor));
  }
  KHOP_INLINE void prefetch(std::int64_t source, Column column) const {
    __builtin_prefetch(x + (source * width + column.first) + column.offset);
  }
};

}  // namespace

template <class T>
void segment_sum(const T* x, std::int64_t width, Edges edges, T* out, int threads) {
  fold_rows<T>(Sum<T>(x, width, Result::sum, out), edges, width, threads);
}

template <class T>
void segment_mean(const T* x, std::int64_t width, Edges edges, T* out, int threads) {
  fold_rows<T>(Sum<T>(x, width, Result::mean, out), edges, width, threads);
}

template <class T>
void segment_mean_gradient(const T* gradient, std::int64_t width, Edges transposed, std::span<const std::int64_t> indptr,
                           T* out, int threads) {
  std::vector<Accumulator<T>> shares(indptr.size() - 1);
  for (std::size_t row = 0; row < shares.size(); ++row) {
    shares[row] = Accumulator<T>{1} / static_cast<Accumulator<T>>(indptr[row + 1] - indptr[row]);  // empty: never read
  }
  fold_rows<T>(Sum<T>(gradient, width, shares.data(), out), transposed, width, threads);
}

void transpose(Edges edges, std::span<std::int64_t> indptr, std::span<std::int32_t> rows) {
  std::ranges::fill(indptr, 0);
  for (const std::int32_t source : edges.indices) ++indptr[source + 1];
  for (std::size_t source = 1; source < indptr.size(); ++source) indptr[source] += indptr[source - 1];
  std::vector<std::int64_t> next(indptr.begin(), indptr.end() - 1);
  for (std::int64_t row = 0; row < edges.rows(); ++row) {
    for (std::int64_t edge = edges.indptr[row]; edge < edges.indptr[row + 1]; ++edge) {
      rows[next[edges.indices[edge]]++] = static_cast<std::int32_t>(row);
    }
  }
}

#define KHOP_SEGMENT(T)                                                  \
  template void segment_sum(const T*, std::int64_t, Edges, T*, int);     \
  template void segment_mean(const T*, std::int64_t, Edges, T*, int);    \
  template void segment_mean_gradient(const T*, std::int64_t, Edges, std::span<const std::int64_t>, T*, int);
KHOP_SEGMENT(float)
KHOP_SEGMENT(double)
KHOP_SEGMENT(BFloat16)
KHOP_SEGMENT(Float16)
#undef KHOP_SEGMENT

}  // namespace khop
