#include "segment_max.h"

#include "number.h"
#include "segment_rows.h"

#include <cstring>
#include <type_traits>

#pragma GCC diagnostic ignored "-Wpsabi"  // see number.h

namespace khop {
namespace {

// Source ids beside the columns of G.
template <class G, class Index>
struct Ids {
  typedef Index Value __attribute__((vector_size(G::count * sizeof(Index)), aligned(G::count * sizeof(Index))));

  static KHOP_INLINE Value load(const Index* from) { return load_lanes<Value>(from); }
  static KHOP_INLINE void store(Index* to, const Value& value) { std::memcpy(to, &value, sizeof value); }
  // What a comparison of values says, as wide as ids; and of ids, as wide as values.
  template <class Mask>
  static KHOP_INLINE Value mask(const Mask& values) {
    return __builtin_convertvector(values, Value);
  }
  template <class Values, class Mask>
  static KHOP_INLINE auto values(const Mask& ids) {
    return __builtin_convertvector(ids, decltype(Values{} == Values{}));
  }
};

template <class T, class Index>
struct Ids<Single<T>, Index> {
  using Value = Index;

  static KHOP_INLINE Value load(const Index* from) { return *from; }
  static KHOP_INLINE void store(Index* to, Value value) { *to = value; }
  static KHOP_INLINE bool mask(bool values) { return values; }
  template <class Values>
  static KHOP_INLINE bool values(bool ids) {
    return ids;
  }
};

template <class G, class Index>
struct MaxOf {
  typename G::Value largest;
  typename Ids<G, Index>::Value winner;
};

template <class T, class Index>
struct Max {
  template <class G>
  using State = MaxOf<G, Index>;

  const T* x;
  std::int64_t width;
  T* out;
  Index* winners;  // or null

  template <class G>
  KHOP_INLINE void take(MaxOf<G, Index>& state, const Edge& edge, std::int64_t column) const {
    const auto value = G::load(x + edge.source * width + column);
    const auto source = typename Ids<G, Index>::Value{} + static_cast<Index>(edge.source);
    if (edge.first) {
      state.largest = value;
      state.winner = source;
      return;
    }
    const auto larger = (value > state.largest) | ((value != value) & (state.largest == state.largest));
    state.largest = larger ? value : state.largest;
    state.winner = Ids<G, Index>::mask(larger) ? source : state.winner;
  }
  template <class G>
  KHOP_INLINE void finish(const MaxOf<G, Index>& state, std::int64_t row, std::int64_t column, std::int64_t degree) const {
    G::store(out + row * width + column, state.largest);
    if (winners == nullptr) return;
    const auto nobody = typename Ids<G, Index>::Value{} - Index{1};
    Ids<G, Index>::store(winners + row * width + column, degree > 0 ? state.winner : nobody);
  }
  KHOP_INLINE void prefetch(std::int64_t source) const { prefetch_row(x + source * width, width); }
};

template <class G>
struct GradientOf {
  typename G::Value sum;
};

template <class T, class Index>
struct MaxGradient {
  template <class G>
  using State = GradientOf<G>;

  const T* gradient;
  std::int64_t width;
  const Index* winners;
  T* out;

  // Turned around, an edge's source is a row of the output, and its row the source that may have won there.
  template <class G>
  KHOP_INLINE void take(GradientOf<G>& state, const Edge& edge, std::int64_t column) const {
    if (edge.repeated) return;  // of parallel edges one has won
    const std::int64_t at = edge.source * width + column;
    const auto won = Ids<G, Index>::load(winners + at) == static_cast<Index>(edge.row);
    state.sum += Ids<G, Index>::template values<typename G::Value>(won) ? G::load(gradient + at) : typename G::Value{};
  }
  template <class G>
  KHOP_INLINE void finish(const GradientOf<G>& state, std::int64_t row, std::int64_t column, std::int64_t) const {
    G::store(out + row * width + column, state.sum);
  }
  KHOP_INLINE void prefetch(std::int64_t source) const {
    prefetch_row(gradient + source * width, width);
    prefetch_row(winners + source * width, width);
  }
};

}  // namespace

template <class T, class Index>
void segment_max(const T* x, std::int64_t width, Csc<Index> edges, T* out, Index* winners, int threads) {
  fold_rows<T>(Max<T, Index>{x, width, out, winners}, edges, width, threads);
}

template <class T, class Row, class Index>
void segment_max_gradient(const T* gradient, std::int64_t width, Csc<Row> transposed, const Index* winners, T* out,
                          int threads) {
  fold_rows<T>(MaxGradient<T, Index>{gradient, width, winners, out}, transposed, width, threads);
}

#define KHOP_SEGMENT_MAX(T, Index)                                                                                    \
  template void segment_max(const T*, std::int64_t, Csc<Index>, T*, Index*, int);                                     \
  template void segment_max_gradient(const T*, std::int64_t, Csc<std::int32_t>, const Index*, T*, int);               \
  template void segment_max_gradient(const T*, std::int64_t, Csc<std::int64_t>, const Index*, T*, int);
KHOP_SEGMENT_MAX(float, std::int32_t)
KHOP_SEGMENT_MAX(float, std::int64_t)
KHOP_SEGMENT_MAX(double, std::int32_t)
KHOP_SEGMENT_MAX(double, std::int64_t)
KHOP_SEGMENT_MAX(BFloat16, std::int32_t)
KHOP_SEGMENT_MAX(BFloat16, std::int64_t)
#undef KHOP_SEGMENT_MAX

}  // namespace khop
