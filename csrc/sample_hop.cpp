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
constexpr std::int64_t kLinesInFlight = 256;  // picks whose edges are fetched ahead of their use; measured, flat above

constexpr std::int64_t kPickStride = kMaxRows;  // between two slots of a lane

// Where a row's picks are made: in a lane of the chunk's draws, or
constexpr std::int32_t kWhole = -1;  // nowhere, the row is taken as it is
constexpr std::int32_t kAlone = -2;  // by themselves: too many slots or too high a degree for lanes

// Frontier rows between their draws and the reading of their edges.
struct Chunk {
  std::int64_t count = 0;
  Row rows[kMaxRows];
  std::int32_t lane[kMaxRows];
  DrawRows draws;
  alignas(64) std::uint32_t picks[kMaxRows * kMaxFanout];
};

// Walks a range of frontier rows as a pipeline of chunks: while chunk i is read, the edges that chunk i + 1 drew and the row
// pointers of chunk i + 2 are on their way from memory.
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
  }

  // Frontier rows [first, last), whose edges start at `cursor`; returns where they end.
  std::int64_t run(std::int64_t first, std::int64_t last, std::int64_t cursor) {
    cursor_ = cursor;
    prefetch_rows(first, last);
    prefetch_rows(first + chunk_rows_, last);
    prepare(chunks_[0], first, last);
    for (std::int64_t at = first, turn = 0; at < last; at += chunk_rows_, turn ^= 1) {
      prefetch_rows(at + 2 * chunk_rows_, last);
      prepare(chunks_[turn ^ 1], at + chunk_rows_, last);
      emit(chunks_[turn], at);
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

  // Always inlined: GCC takes a function that only prefetches for one without effect and drops its calls.
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
    for (std::int64_t r = 0; r < chunk.count; ++r) {
      const Index* const row = graph_.indices.data() + chunk.rows[r].begin;
      if (chunk.lane[r] >= 0) {
        const std::uint32_t* const picks = chunk.picks + chunk.lane[r];
        for (std::int64_t slot = 0; slot < fanout_; ++slot) __builtin_prefetch(row + picks[slot * kPickStride]);
      } else if (chunk.rows[r].degree > 0) {
        __builtin_prefetch(row);
        __builtin_prefetch(row + chunk.rows[r].degree - 1);
      }
    }
  }

  void prepare(Chunk& chunk, std::int64_t first, std::int64_t last) {
    last = std::min(last, first + chunk_rows_);
    chunk.count = 0;
    chunk.draws.count = 0;
    for (std::int64_t i = first; i < last; ++i) {
      const Row row = row_at(graph_, request_, i);
      chunk.rows[chunk.count] = row;
      chunk.lane[chunk.count++] = place(chunk.draws, row.degree, i);
    }
    if (chunk.draws.count > 0) draw_(chunk.draws, static_cast<std::size_t>(fanout_), request_.stream, chunk.picks);
    prefetch_edges(chunk);
  }

  std::int32_t place(DrawRows& draws, std::int64_t degree, std::int64_t i) const {
    if (takes_whole_row(request_, degree)) return kWhole;
    if (fanout_ > static_cast<std::int64_t>(kMaxFanout) || static_cast<std::uint64_t>(degree) >= kWideDegree) return kAlone;
    const std::size_t lane = draws.count++;
    const std::uint64_t key = key_at(i), id = original_id(request_.nodes.data()[i]);
    draws.key_low[lane] = static_cast<std::uint32_t>(key);
    draws.key_high[lane] = static_cast<std::uint32_t>(key >> 32);
    draws.node_low[lane] = static_cast<std::uint32_t>(id);
    draws.node_high[lane] = static_cast<std::uint32_t>(id >> 32);
    draws.degree[lane] = static_cast<std::uint32_t>(degree);
    return static_cast<std::int32_t>(lane);
  }

  void emit(const Chunk& chunk, std::int64_t first) {
    for (std::int64_t r = 0; r < chunk.count; ++r) {
      output_.offsets[first + r] = cursor_;
      const Row& row = chunk.rows[r];
      if (chunk.lane[r] >= 0) {
        emit_picks(row, chunk.picks + chunk.lane[r], kPickStride, fanout_);
      } else if (chunk.lane[r] == kWhole) {
        emit_whole(row);
      } else {
        emit_alone(row, first + r);
      }
    }
  }

  // Picks lie `stride` apart.
  template <class Pick>
  void emit_picks(const Row& row, const Pick* picks, std::int64_t stride, std::int64_t count) {
    const Index* const from = graph_.indices.data() + row.begin;
    Index* const to = output_.nodes + cursor_;
    for (std::int64_t slot = 0; slot < count; ++slot) to[slot] = from[picks[slot * stride]];
    if (output_.edges != nullptr) {
      std::int64_t* const edges = output_.edges + cursor_;
      for (std::int64_t slot = 0; slot < count; ++slot) edges[slot] = row.begin + static_cast<std::int64_t>(picks[slot * stride]);
    }
    cursor_ += count;
  }

  void emit_whole(const Row& row) {
    std::copy_n(graph_.indices.data() + row.begin, row.degree, output_.nodes + cursor_);
    if (output_.edges != nullptr) std::iota(output_.edges + cursor_, output_.edges + cursor_ + row.degree, row.begin);
    cursor_ += row.degree;
  }

  void emit_alone(const Row& row, std::int64_t i) {
    const RowWords words(key_at(i), original_id(request_.nodes.data()[i]), request_.stream);
    const auto degree = static_cast<std::uint64_t>(row.degree);
    if (request_.replacement == Replacement::without) {
      draw_distinct_alone(words, degree, static_cast<std::size_t>(fanout_), taken_, alone_);
    } else {
      draw_repeated_alone(words, degree, static_cast<std::size_t>(fanout_), alone_);
    }
    for (const std::uint64_t position : alone_) __builtin_prefetch(graph_.indices.data() + row.begin + position);
    emit_picks(row, alone_.data(), 1, fanout_);
  }

  const Csc<Index>& graph_;
  const HopRequest& request_;
  const HopOutput<Index>& output_;
  const std::int64_t fanout_;
  const DrawFunction draw_;
  std::int64_t chunk_rows_;
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
std::int64_t sample_hop(const Csc<Index>& graph, const HopRequest& request, const HopOutput<Index>& output) {
  const auto frontier = static_cast<std::int64_t>(request.nodes.size());
  const int parts = parts_for(request.threads, frontier, kRowsPerThread);
  std::vector<std::int64_t> ends(static_cast<std::size_t>(parts) + 1, 0);  // of each part's edges, after a leading 0
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
template std::int64_t sample_hop(const Csc<std::int32_t>&, const HopRequest&, const HopOutput<std::int32_t>&);
template std::int64_t sample_hop(const Csc<std::int64_t>&, const HopRequest&, const HopOutput<std::int64_t>&);

}  // namespace khop
