#include "segment_max.h"

#include "number.h"
#include "segment_rows.h"

#include <cstring>
#include <type_traits>

#pragma GCC diagnostic ignored "-Wpsabi"  // see number.h

namespace khop {
namespace {

// Ids of sources for the columns of G, in lanes of equal width, so that a comparison selects among both.
template <class G>
struct Ids {
  using Lane = std::conditional_t<sizeof(typename G::Value) / G::count == 8, std::int64_t, std::int32_t>;
  using Value = Lanes<Lane, sizeof(typename G::Value)>;
  using Stored = Lanes<std::int32_t, G::count * sizeof(std::int32_t)>;

  static KHOP_INLINE Value load(const std::int32_t* from) { return __builtin_convertvector(load_lanes<Stored>(from), Value); }
  static KHOP_INLINE void store(std::int32_t* to, const Value& value) {
    const Stored narrow = __builtin_convertvector(value, Stored);
    std::memcpy(to, &narrow, sizeof narrow);
  }
};

template <class T>
struct Ids<Single<T>> {
  using Value = std::int32_t;

  static KHOP_INLINE Value load(const std::int32_t* from) { return *from; }
  static KHOP_INLINE void store(std::int32_t* to, Value value) { *to = value; }
};

template <class G>
struct MaxOf {
  typename G::Value largest;
  typename Ids<G>::Value winner;
};

template <class T>
struct Max {
  static constexpr int kMostBytes = 32;
  static constexpr int kWideTileBytes = 0;
  template <class G>
  using State = MaxOf<G>;

  const T* x;
  std::int64_t width;
  T* out;
  std::int32_t* winners;  // or null

  template <class G>
  KHOP_INLINE void take(MaxOf<G>& state, const Edge& edge, Column column) const {
    const auto value = G::load(x + (edge.source * width + column.first) + column.offset);
    const auto source = typename Ids<G>::Value{} + static_cast<std::int32_t>(edge.source);
    if (edge.first) {
      state.largest = value;
      state.winner = source;
      return;
    }
    const auto larger = (value > state.largest) | ((value != value) & (state.largest == state.largest));
    state.largest = larger ? value : state.largest;
    state.winner = larger ? source : state.winner;
  }
  template <class G>
  KHOP_INLINE void finish(const MaxOf<G>& state, std::int64_t row, std::int64_t column, std::int64_t degree) const {
    G::store(out + row * width + column, state.largest);
    if (winners == nullptr) return;
    const auto nobody = typename Ids<G>::Value{} - 1;
    Ids<G>::store(winners + row * width + column, degree > 0 ? state.winner : nobody);
  }
  KHOP_INLINE void prefetch(std::int64_t source, Column column) const {
    __builtin_prefetch(x + (source * width + column.first) + column.offset);
  }
};

template <class T>
struct MaxGradient {
  static constexpr int kMostBytes = 32;
  static constexpr int kWideTileBytes = 0;
  template <class G>
  using State = SumOf<G>;

  const T* gradient;
  std::int64_t width;
  const std::int32_t* winners;
  T* out;

  // In transposed edges, an edge's source is a row of the output, and its row the source that may have won there.
  template <class G>
  KHOP_INLINE void take(SumOf<G>& state, const Edge& edge, Column column) const {
    if (edge.repeated) return;  // only one of parallel edges has won
    const std::int64_t at = edge.source * width + column.first;
    const auto won = Ids<G>::load(winners + at + column.offset) == static_cast<std::int32_t>(edge.row);
    state.sum += won ? G::load(gradient + at + column.offset) : typename G::Value{};
  }
  template <class G>
  KHOP_INLINE void finish(const SumOf<G>& state, std::int64_t row, std::int64_t column, std::int64_t) const {
    G::store(out + row * width + column, state.sum);
  }
  KHOP_INLINE void prefetch(std::int64_t source, Column column) const {
    const std::int64_t at = source * width + column.first;
    __builtin_prefetch(gradient + at + column.offset);
    __builtin_prefetch(winners + at + column.offset);
  }
};

}  // namespace

template <class T>
void segment_max(const T* x, std::int64_t width, Edges edges, T* out, std::int32_t* winners, int threads) {
  fold_rows<T>(Max<T>{x, width, out, winners}, edges, width, threads);
}

template <class T>
void segment_max_gradient(const T* gradient, std::int64_t width, Edges transposed, const std::int32_t* winners, T* out,
                          int threads) {
  fold_rows<T>(MaxGradient<T>{gradient, width, winners, out}, transposed, width, threads);
}

#define KHOP_SEGMENT_MAX(T)                                                                   \
  template void segment_max(const T*, std::int64_t, Edges, T*, std::int32_t*, int);           \
  template void segment_max_gradient(const T*, std::int64_t, Edges, const std::int32_t*, T*, int);
KHOP_SEGMENT_MAX(float)
KHOP_SEGMENT_MAX(double)
KHOP_SEGMENT_MAX(BFloat16)
KHOP_SEGMENT_MAX(Float16)
#undef KHOP_SEGMENT_MAX

}  // namespace khop
