// The common loop of reductions over the edges of a row.
//
// A row's result is in registers, one tile of columns at a time. To hide the latency of source rows, a tile prefetches its columns
// of each kAhead edges before their use: one row per edge, because a core cannot wait for the lines of many rows at once. Rows of
// several tiles are processed in chunks of edges, so that the page of a source row is still known when the next tile needs it.
// The last group of columns and the last tile are moved back to end with the row; columns that they cover twice get the same
// result.
#pragma once

#include "number.h"
#include "parallel.h"
#include "segment.h"
#include "simd.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // see number.h

namespace khop {

inline constexpr int kTileBytes = 256;               // of columns in registers,
inline constexpr int kLeastTileBytes = 64;
#if defined(__aarch64__)
inline constexpr int kMostGroups = 16;               // in this number of registers
inline constexpr int kMostWideGroups = 26;
#else
inline constexpr int kMostGroups = 8;
inline constexpr int kMostWideGroups = 13;
#endif
inline constexpr std::int64_t kAhead = 16;           // edges
inline constexpr std::int64_t kChunk = 32;           // edges
inline constexpr std::int64_t kRun = 512;            // edges that are added in order: see RunSums
inline constexpr std::int64_t kPartBytes = 1 << 17;  // less is not worth a thread

template <class T>
KHOP_INLINE void prefetch_row(const T* row, std::int64_t width) {
  constexpr std::int64_t line = 64 / sizeof(T);
  for (std::int64_t column = 0; column < width; column += line) __builtin_prefetch(row + column);
}

// One edge as a Fold sees it.
struct Edge {
  std::int64_t source;
  std::int64_t row;
  bool first;     // of its row
  bool repeated;  // it has the same source as the previous edge of its row
  std::int64_t index;
};

// The first column of a group: its tile's first, and an offset, which is a constant of the address except in the last group.
struct Column {
  std::int64_t first, offset;

  KHOP_INLINE operator std::int64_t() const { return first + offset; }
};

// A tree of sums, the same on every device: each kRun edges of a row are added in order, beginning with 0, then each kRun of
// these sums, and so on. A row with up to kRun edges does not need it.
template <class Sum>
class RunSums {
 public:
  explicit RunSums(std::int64_t size) : size_(static_cast<std::size_t>(size)) {}

  // Adds the sums of the next run, after `done` of the row's `degree` edges. Returns those of the row after its last run, else
  // null.
  KHOP_INLINE Sum* add(const Sum* run, std::int64_t done, std::int64_t degree) {
    std::int64_t span = kRun;  // edges of one of the sums that are added
    for (std::size_t level = 0;; ++level, span *= kRun) {
      if (level == levels_.size()) levels_.emplace_back(size_);
      Sum* const sums = levels_[level].data();
      const bool is_first = (done - 1) % (span * kRun) < span;
      for (std::size_t at = 0; at < size_; ++at) sums[at] = is_first ? run[at] : sums[at] + run[at];
      if (degree <= span * kRun) return done == degree ? sums : nullptr;
      if (done % (span * kRun) != 0 && done != degree) return nullptr;
      run = sums;
    }
  }

 private:
  std::size_t size_;
  std::vector<std::vector<Sum>> levels_;
};

// The state of a Fold that adds.
template <class G>
struct SumOf {
  typename G::Value sum;

  KHOP_INLINE SumOf operator+(const SumOf& other) const { return {sum + other.sum}; }
};

// A Fold has, for groups G of columns beginning at `column`:
//   kMostBytes                            of a group, see run_widest
//   kWideTileBytes                        of an additional, larger tile, which leaves few registers; or 0
//   State<G>                              what is known of a row after some of its edges; begins as State<G>{}. SumOf<G>: the
//                                         states of runs are added
//   take(state, edge, column)             the next edge of the row
//   finish(state, row, column, degree)    the row has ended
//   prefetch(source, column)              the cache line with a column of T
template <class T, class Fold, class G>
class RowLoop {
 public:
  using State = typename Fold::template State<G>;

  static KHOP_INLINE void run(const Fold* fold, const Edges* edges, std::int64_t width, std::int64_t begin,
                              std::int64_t end) {
    std::vector<State> partial(static_cast<std::size_t>(groups(width) + kTile - 1));
    [[maybe_unused]] RunSums<State> sums(groups(width) + kTile - 1);
    const RowLoop loop{*fold, edges->indptr.data(), edges->indices.data(), width, edges->indptr[static_cast<std::size_t>(end)]};
    const std::int64_t at_once = loop.tile_ == groups(width) ? kRun : kChunk;
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t first = loop.indptr_[row], end_of_row = loop.indptr_[row + 1];
      State* states = partial.data();
      std::int64_t edge = first;
      bool is_done;
      do {
        const std::int64_t stop = std::min(edge + at_once, end_of_row);
        loop.chunk(row, edge, stop, states);
        edge = stop;
        is_done = edge == end_of_row;
        if constexpr (kIsSum) {
          const bool has_runs = end_of_row - first > kRun && states == partial.data();
          if (has_runs && (is_done || (edge - first) % kRun == 0)) {
            State* const sum = sums.add(states, edge - first, end_of_row - first);
            if (sum != nullptr) states = sum, is_done = false;  // a chunk without edges finishes the row
          }
        }
      } while (!is_done);
    }
  }

 private:
  static constexpr bool kIsSum = std::is_same_v<State, SumOf<G>>;
  static constexpr int kGroupsOfLine = std::max(1, 64 / static_cast<int>(G::count * sizeof(T)));
  static constexpr int kGroupBytes = G::count == 1 ? kLeastTileBytes : sizeof(typename G::Value);
  static constexpr int kTile = std::min(kTileBytes / kGroupBytes, kMostGroups);  // groups
  static constexpr int kLeastTile = kLeastTileBytes / kGroupBytes;
  static constexpr int kWideTile = std::min((Fold::kWideTileBytes + kGroupBytes - 1) / kGroupBytes, kMostWideGroups);

  static std::int64_t groups(std::int64_t width) { return (width + G::count - 1) / G::count; }

  // The groups of a tile for rows of this number of groups, which are not fewer.
  static int tile_of(std::int64_t all) {
    const auto covered = [all](int tile) { return (all + tile - 1) / tile * tile; };
    if (kWideTile > kTile && all >= kWideTile && covered(kWideTile) < covered(kTile)) return kWideTile;
    return all >= kTile ? kTile : all >= 2 * kLeastTile ? 2 * kLeastTile : kLeastTile;
  }

  KHOP_INLINE void chunk(std::int64_t row, std::int64_t edge, std::int64_t stop, State* partial) const {
    const std::int64_t all = groups(width_);
    if constexpr (kWideTile > kTile) {
      if (tile_ == kWideTile) return tiles<kWideTile>(row, edge, stop, all, partial);
    }
    if (tile_ == kTile) {
      tiles<kTile>(row, edge, stop, all, partial);
    } else if (tile_ == 2 * kLeastTile) {
      tiles<2 * kLeastTile>(row, edge, stop, all, partial);
    } else {
      tiles<kLeastTile>(row, edge, stop, all, partial);
    }
  }

  template <int size>
  KHOP_INLINE void tiles(std::int64_t row, std::int64_t edge, std::int64_t stop, std::int64_t all, State* partial) const {
    for (std::int64_t group = 0; group < all; group += size) {
      tile<size>(row, edge, stop, std::min(group, all - size), partial + group);
    }
  }

  template <int size>
  KHOP_INLINE void tile(std::int64_t row, std::int64_t edge, std::int64_t stop, std::int64_t group, State* partial) const {
    const std::int64_t begin = indptr_[row], end = indptr_[row + 1];
    const bool is_new = edge == begin || (kIsSum && edge < stop && (edge - begin) % kRun == 0);
    const bool is_last = stop == end && !(kIsSum && edge < stop && end - begin > kRun);
    const std::int64_t column = group * G::count, last = std::min(column + (size - 1) * G::count, width_ - G::count);
    const auto at = [&](int i) KHOP_INLINED { return i + 1 < size ? Column{column, i * G::count} : Column{last, 0}; };
    State states[size];
    unrolled<size>([&](int i) KHOP_INLINED { states[i] = is_new ? State{} : partial[i]; });
    for (; edge < stop; ++edge) {
      if (edge + kAhead < last_edge_) {
        const std::int64_t source = indices_[edge + kAhead];
        unrolled<(size + kGroupsOfLine - 1) / kGroupsOfLine>(
            [&](int i) KHOP_INLINED { fold_.prefetch(source, at(i * kGroupsOfLine)); });
      }
      const bool first = edge == begin;
      const Edge taken{indices_[edge], row, first, !first && indices_[edge - 1] == indices_[edge], edge};
      unrolled<size>([&](int i) KHOP_INLINED { fold_.take(states[i], taken, at(i)); });
    }
    if (is_last) {
      unrolled<size>([&](int i) KHOP_INLINED { fold_.finish(states[i], row, at(i), end - begin); });
    } else {
      unrolled<size>([&](int i) KHOP_INLINED { partial[i] = states[i]; });
    }
  }

  const Fold fold_;  // a copy, which stores of results cannot change
  const std::int64_t* indptr_;
  const std::int32_t* indices_;
  std::int64_t width_;
  std::int64_t last_edge_;
  int tile_ = tile_of(groups(width_));

  RowLoop(const Fold& fold, const std::int64_t* indptr, const std::int32_t* indices, std::int64_t width, std::int64_t last_edge)
      : fold_(fold), indptr_(indptr), indices_(indices), width_(width), last_edge_(last_edge) {}
};

// The first row of a part, with edges and rows together split evenly, so that a hub does not delay one thread.
inline std::int64_t first_row(std::span<const std::int64_t> indptr, int part, int parts) {
  const auto rows = static_cast<std::int64_t>(indptr.size()) - 1;
  const std::int64_t target = part_begin(indptr[rows] + rows, part, parts);
  std::int64_t low = 0, high = rows;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (indptr[middle] + middle < target) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

template <class T, class Fold>
struct RowLoops {
  template <int bytes>
  using Of = RowLoop<T, Fold, Group<T, bytes>>;
};

// Folds the edges of every row over `width` columns of T. One thread processes the edges of a row.
template <class T, class Fold>
void fold_rows(const Fold& fold, const Edges& edges, std::int64_t width, int threads) {
  constexpr std::int64_t least = kLeastTileBytes / sizeof(Accumulator<T>);
  if (width == 0) return;
  const auto steps = static_cast<std::int64_t>(edges.indices.size()) + edges.rows();
  const int parts = spare_parts(threads, steps * width * static_cast<std::int64_t>(sizeof(T)), kPartBytes);
  parallel_parts(threads, parts, [&](int part) {
    const std::int64_t begin = first_row(edges.indptr, part, parts), end = first_row(edges.indptr, part + 1, parts);
    if (width >= least) {
      run_widest<RowLoops<T, Fold>::template Of, Fold::kMostBytes>(&fold, &edges, width, begin, end);
    } else {
      RowLoop<T, Fold, Single<T>>::run(&fold, &edges, width, begin, end);
    }
  });
}

}  // namespace khop

#pragma GCC diagnostic pop
