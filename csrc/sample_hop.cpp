#include "sample_hop.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "draw_alone.h"
#include "draw_rows.h"
#include "hop_rows.h"
#include "parallel.h"
#include "random.h"
#include "simd.h"

namespace khop {
namespace {

constexpr std::int64_t kRowsPerThread = 256;  // fewer are not worth a thread
constexpr std::int64_t kLinesInFlight = 256;  // picks whose edges are prefetched; larger values were not faster

constexpr std::int64_t kPickStride = kMaxRows;  // between two slots of a lane
constexpr std::int64_t kShort = 16;             // at most this many entries of a whole row are copied one by one

// Source and target of a row's entries.
struct Places {
  std::int64_t count = 0;
  std::int64_t begin[kMaxRows];
  std::int64_t at[kMaxRows];

  void put(std::int64_t from, std::int64_t to) {
    begin[count] = from;
    at[count] = to;
  }
};

// Frontier rows between their draws and the reads of their edges. If degrees are close to the fanout, it is unpredictable whether a
// row draws, so rows are put into lists without a branch, and each list is processed separately.
struct Chunk {
  Places drawing;  // a row for each lane of `draws`
  DrawRows draws;
  Places whole;  // nonempty rows that are returned whole
  std::int64_t whole_degree[kMaxRows];
  Places alone;  // rows with too many slots or too high a degree for lanes
  std::int64_t alone_row[kMaxRows];
  alignas(64) std::uint32_t picks[kMaxRows * kMaxFanout];
};

// Processes a range of frontier rows as a pipeline of chunks: while chunk i is read, the drawn edges of chunk i + 1 and the row
// pointers of chunk i + 2 are prefetched.
template <class Index>
class HopWalk {
 public:
  HopWalk(const Csc<Index>& graph, const HopRequest& request, const HopOutput<Index>& output)
      : graph_(graph),
        request_(request),
        output_(output),
        fanout_(request.fanout),
        draw_(request.replacement == Replacement::without ? draw_functions().distinct : draw_functions().repeated) {
    const std::int64_t slots = std::max<std::int64_t>(1, std::abs(fanout_));
    chunk_rows_ = std::clamp<std::int64_t>(kLinesInFlight / slots / 16 * 16, 16, kMaxRows);
    lane_degrees_ = fanout_ > static_cast<std::int64_t>(kMaxFanout) ? 0 : static_cast<std::int64_t>(kWideDegree);
  }

  // Processes frontier rows [first, last), whose edges start at `cursor`; returns their end.
  std::int64_t run(std::int64_t first, std::int64_t last, std::int64_t cursor) {
    cursor_ = cursor;
    prefetch_rows(first, last);
    prefetch_rows(first + chunk_rows_, last);
    prepare(chunks_[0], first, last);
    for (std::int64_t at = first, turn = 0; at < last; at += chunk_rows_, turn ^= 1) {
      prefetch_rows(at + 2 * chunk_rows_, last);
      prepare(chunks_[turn ^ 1], at + chunk_rows_, last);
      emit(chunks_[turn]);
    }
    return cursor_;
  }

 private:
  std::uint64_t original_id(std::int64_t node) const {
    return static_cast<std::uint64_t>(request_.original_ids.empty() ? node : request_.original_ids.data()[node]);
  }

  std::uint64_t key_at(std::int64_t i) const {
    return request_.trees.empty() ? request_.key : tree_key(request_.key, static_cast<std::uint64_t>(request_.trees.data()[i]));
  }

  // Slots of the lanes' rows: none without such rows, because the fanout may be far above all degrees.
  std::int64_t slots_of(const Chunk& chunk) const { return chunk.drawing.count > 0 ? fanout_ : 0; }

  // Always inlined, because GCC removes calls of a function that only prefetches.
  KHOP_INLINE void prefetch_rows(std::int64_t first, std::int64_t last) const {
    last = std::min(last, first + chunk_rows_);
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t node = request_.nodes.data()[i];
      if (request_.ranges.empty()) {
        __builtin_prefetch(graph_.indptr.data() + node);
        __builtin_prefetch(graph_.indptr.data() + node + 1);
      }
      if (!request_.original_ids.empty()) __builtin_prefetch(request_.original_ids.data() + node);
    }
  }

  KHOP_INLINE void prefetch_edges(const Chunk& chunk) const {
    const Index* const indices = graph_.indices.data();
    for (std::int64_t slot = 0; slot < slots_of(chunk); ++slot) {
      const std::uint32_t* const picks = chunk.picks + slot * kPickStride;
      for (std::int64_t lane = 0; lane < chunk.drawing.count; ++lane) {
        __builtin_prefetch(indices + chunk.drawing.begin[lane] + picks[lane]);
      }
    }
    for (std::int64_t w = 0; w < chunk.whole.count; ++w) {
      __builtin_prefetch(indices + chunk.whole.begin[w]);
      __builtin_prefetch(indices + chunk.whole.begin[w] + chunk.whole_degree[w] - 1);
    }
  }

  void prepare(Chunk& chunk, std::int64_t first, std::int64_t last) {
    last = std::min(last, first + chunk_rows_);
    chunk.drawing.count = chunk.whole.count = chunk.alone.count = 0;
    for (std::int64_t i = first; i < last; ++i) place(chunk, i);
    chunk.draws.count = static_cast<std::size_t>(chunk.drawing.count);
    if (chunk.draws.count > 0) draw_(chunk.draws, static_cast<std::size_t>(fanout_), request_.stream, chunk.picks);
    prefetch_edges(chunk);
  }

  // Writes a row to every list, and advances only the right one.
  KHOP_INLINE void place(Chunk& chunk, std::int64_t i) {
    const Row row = row_at(graph_, request_, i);
    const bool whole = takes_whole_row(request_, row.degree);
    const std::int64_t at = cursor_;
    output_.offsets[i] = at;
    cursor_ += whole ? row.degree : fanout_;
    chunk.whole.put(row.begin, at);
    chunk.whole_degree[chunk.whole.count] = row.degree;
    chunk.whole.count += whole & (row.degree > 0);
    if (row.degree >= lane_degrees_) [[unlikely]] {
      chunk.alone.put(row.begin, at);
      chunk.alone_row[chunk.alone.count] = i;
      chunk.alone.count += !whole;
      return;
    }
    const auto lane = static_cast<std::size_t>(chunk.drawing.count);
    const std::uint64_t key = key_at(i), id = original_id(request_.nodes.data()[i]);
    chunk.draws.key_low[lane] = static_cast<std::uint32_t>(key);
    chunk.draws.key_high[lane] = static_cast<std::uint32_t>(key >> 32);
    chunk.draws.node_low[lane] = static_cast<std::uint32_t>(id);
    chunk.draws.node_high[lane] = static_cast<std::uint32_t>(id >> 32);
    chunk.draws.degree[lane] = static_cast<std::uint32_t>(row.degree);
    chunk.drawing.put(row.begin, at);
    chunk.drawing.count += !whole;
  }

  void emit(const Chunk& chunk) {
    for (std::int64_t slot = 0; slot < slots_of(chunk); ++slot) {
      const std::uint32_t* const picks = chunk.picks + slot * kPickStride;
      copy_entries(chunk.drawing, slot, [&](std::int64_t lane) { return static_cast<std::int64_t>(picks[lane]); });
    }
    emit_whole(chunk);
    for (std::int64_t a = 0; a < chunk.alone.count; ++a) emit_alone(chunk.alone.begin[a], chunk.alone.at[a], chunk.alone_row[a]);
  }

  // Copies entry pick(row) of every row to its slot number `slot`.
  template <class Pick>
  KHOP_INLINE void copy_entries(const Places& rows, std::int64_t slot, const Pick& pick) {
    for (std::int64_t r = 0; r < rows.count; ++r) output_.nodes[rows.at[r] + slot] = graph_.indices.data()[rows.begin[r] + pick(r)];
    if (output_.edges == nullptr) return;
    for (std::int64_t r = 0; r < rows.count; ++r) output_.edges[rows.at[r] + slot] = rows.begin[r] + pick(r);
  }

  // Copies short rows in steps that do not depend on their unpredictable lengths, by repeating the last entry.
  void emit_whole(const Chunk& chunk) {
    const Places& rows = chunk.whole;
    if (fanout_ >= 0 && fanout_ <= kShort) {
      for (std::int64_t slot = 0; slot < fanout_; ++slot) {
        for (std::int64_t r = 0; r < rows.count; ++r) {
          const std::int64_t step = std::min(slot, chunk.whole_degree[r] - 1);
          output_.nodes[rows.at[r] + step] = graph_.indices.data()[rows.begin[r] + step];
          if (output_.edges != nullptr) output_.edges[rows.at[r] + step] = rows.begin[r] + step;
        }
      }
      return;
    }
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const std::int64_t begin = rows.begin[r], degree = chunk.whole_degree[r], at = rows.at[r];
      std::copy_n(graph_.indices.data() + begin, degree, output_.nodes + at);
      if (output_.edges != nullptr) std::iota(output_.edges + at, output_.edges + at + degree, begin);
    }
  }

  void emit_alone(std::int64_t begin, std::int64_t at, std::int64_t i) {
    const std::int64_t node = request_.nodes.data()[i];
    const RowWords words(key_at(i), original_id(node), request_.stream);
    const auto degree = static_cast<std::uint64_t>(row_at(graph_, request_, i).degree);
    if (request_.replacement == Replacement::without) {
      draw_distinct_alone(words, degree, static_cast<std::size_t>(fanout_), taken_, alone_);
    } else {
      draw_repeated_alone(words, degree, static_cast<std::size_t>(fanout_), alone_);
    }
    const Index* const from = graph_.indices.data() + begin;
    for (const std::uint64_t position : alone_) __builtin_prefetch(from + position);
    for (std::size_t slot = 0; slot < alone_.size(); ++slot) {
      const auto to = static_cast<std::size_t>(at) + slot;
      output_.nodes[to] = from[alone_[slot]];
      if (output_.edges != nullptr) output_.edges[to] = begin + static_cast<std::int64_t>(alone_[slot]);
    }
  }

  const Csc<Index>& graph_;
  const HopRequest& request_;
  const HopOutput<Index>& output_;
  const std::int64_t fanout_;
  const DrawFunction draw_;
  std::int64_t chunk_rows_;
  std::int64_t lane_degrees_;  // rows of at least this degree are drawn alone
  std::int64_t cursor_ = 0;
  Chunk chunks_[2];
  PickSet taken_;
  std::vector<std::uint64_t> alone_;
};

}  // namespace

template <class Index>
std::int64_t edge_capacity(const Csc<Index>& graph, const HopRequest& request) {
  const auto frontier = static_cast<std::int64_t>(request.nodes.size());
  check_nodes(graph, request.nodes);
  if (request.fanout >= 0 && request.fanout <= static_cast<std::int64_t>(kMaxFanout)) return frontier * request.fanout;
  return count_edges(graph, request, 0, frontier);
}

template <class Index>
void check_sources(const HopRequest& request, const std::int64_t* offsets, std::span<const Index> nodes, std::int64_t num_sources) {
  const std::int64_t at = first_outside(nodes, num_sources, 1);
  if (at < 0) return;
  const auto row = std::upper_bound(offsets, offsets + request.nodes.size() + 1, at) - offsets - 1;
  throw DamagedArray("indices", "row " + std::to_string(request.nodes[static_cast<std::size_t>(row)]) + " has source id " +
                                    std::to_string(nodes[static_cast<std::size_t>(at)]) + ": must be in [0, " +
                                    std::to_string(num_sources) + ")");
}

template <class Index>
std::int64_t sample_hop(const Csc<Index>& graph, const HopRequest& request, const HopOutput<Index>& output) {
  const auto frontier = static_cast<std::int64_t>(request.nodes.size());
  if (request.fanout == 0) {  // an edge type that the hop skips: the graph is not read
    std::fill_n(output.offsets, frontier + 1, 0);
    return 0;
  }
  const int parts = parts_for(request.threads, frontier, kRowsPerThread);
  std::vector<std::int64_t> ends(static_cast<std::size_t>(parts) + 1, 0);  // end of each part's edges, after a leading 0
  const auto first_row = [&](int part) { return part_begin(frontier, part, parts); };
  parallel_parts(parts - 1, [&](int part) {
    ends[static_cast<std::size_t>(part) + 1] = count_edges(graph, request, first_row(part), first_row(part + 1));
  });
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  parallel_parts(parts, [&](int part) {
    HopWalk<Index> walk(graph, request, output);
    const std::int64_t end = walk.run(first_row(part), first_row(part + 1), ends[static_cast<std::size_t>(part)]);
    if (part == parts - 1) output.offsets[frontier] = end;
  });
  return output.offsets[frontier];
}

template std::int64_t edge_capacity(const Csc<std::int32_t>&, const HopRequest&);
template std::int64_t edge_capacity(const Csc<std::int64_t>&, const HopRequest&);
template void check_sources(const HopRequest&, const std::int64_t*, std::span<const std::int32_t>, std::int64_t);
template void check_sources(const HopRequest&, const std::int64_t*, std::span<const std::int64_t>, std::int64_t);
template std::int64_t sample_hop(const Csc<std::int32_t>&, const HopRequest&, const HopOutput<std::int32_t>&);
template std::int64_t sample_hop(const Csc<std::int64_t>&, const HopRequest&, const HopOutput<std::int64_t>&);

}  // namespace khop
