#include "sample_hop.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

#include "draw_rows.h"
#include "parallel.h"
#include "random.h"
#include "simd.h"

namespace khop {
namespace {

constexpr std::int64_t kRowsPerThread = 256;  // fewer are not worth a thread
constexpr std::int64_t kLinesInFlight = 256;  // picks prefetched ahead of their use: what the caches near a core hold

template <class Index>
struct Row {
  std::int64_t begin;
  std::int64_t degree;
};

[[noreturn]] void reject_node(std::int64_t node, std::int64_t rows) {
  throw std::invalid_argument("frontier node " + std::to_string(node) + ": not in [0, " + std::to_string(rows) +
                              "), the rows of the graph");
}

[[noreturn]] void reject_row(std::int64_t row) {
  throw std::invalid_argument("indptr of row " + std::to_string(row) +
                              ": descends or ends behind the last edge; the graph is damaged");
}

template <class Index>
void check_nodes(const Csc<Index>& graph, std::span<const std::int64_t> nodes) {
  const auto rows = static_cast<std::uint64_t>(graph.rows());
  for (const std::int64_t node : nodes) {
    if (static_cast<std::uint64_t>(node) >= rows) reject_node(node, graph.rows());
  }
}

template <class Index>
Row<Index> row_of(const Csc<Index>& graph, std::int64_t node) {
  const auto at = static_cast<std::size_t>(node);
  const std::int64_t begin = graph.indptr[at], end = graph.indptr[at + 1];
  if (begin < 0 || begin > end || end > static_cast<std::int64_t>(graph.indices.size())) reject_row(node);
  return {begin, end - begin};
}

bool takes_whole_row(const HopRequest& request, std::int64_t degree) {
  if (request.fanout < 0) return true;
  return request.replacement == Replacement::without ? degree <= request.fanout : degree == 0;
}

std::int64_t edges_of(const HopRequest& request, std::int64_t degree) {
  return takes_whole_row(request, degree) ? degree : request.fanout;
}

// Exact count over frontier rows [first, last).
template <class Index>
std::int64_t count_edges(const Csc<Index>& graph, const HopRequest& request, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kAhead = 32;
  std::int64_t edges = 0;
  for (std::int64_t i = first; i < last; ++i) {
    if (i + kAhead < last) __builtin_prefetch(graph.indptr.data() + request.nodes[static_cast<std::size_t>(i + kAhead)]);
    edges += edges_of(request, row_of(graph, request.nodes[static_cast<std::size_t>(i)]).degree);
  }
  return edges;
}

// A chunk of frontier rows between its draws and the reading of its edges.
template <class Index>
struct Chunk {
  std::size_t count = 0;
  Row<Index> rows[kMaxRows];
  std::int32_t lane[kMaxRows];  // in `draws`; kWhole or kAlone otherwise
  DrawRows draws;
  alignas(64) std::uint32_t picks[kMaxRows * kMaxFanout];
};

constexpr std::int32_t kWhole = -1;  // the row is taken as it is
constexpr std::int32_t kAlone = -2;  // too many slots or too high a degree for lanes

// Walks a range of frontier rows as a pipeline of chunks: while chunk i is read, the edges that chunk i + 1 drew and the row
// pointers of chunk i + 2 are on their way from memory.
template <class Index>
class HopWalk {
 public:
  HopWalk(const Csc<Index>& graph, const HopRequest& request, const HopOutput<Index>& output)
      : graph_(graph), request_(request), output_(output), level_(draw_level()) {
    const std::int64_t slots = std::max<std::int64_t>(1, std::abs(request.fanout));
    rows_per_chunk_ = std::clamp<std::int64_t>(kLinesInFlight / slots / 16 * 16, 16, kMaxRows);
  }

  // Frontier rows [first, last), whose edges start at `cursor`; returns where they end.
  std::int64_t run(std::int64_t first, std::int64_t last, std::int64_t cursor) {
    cursor_ = cursor;
    prefetch_rows(first, last);
    prefetch_rows(first + rows_per_chunk_, last);
    prepare(chunks_[0], first, last);
    for (std::int64_t at = first, turn = 0; at < last; at += rows_per_chunk_, turn ^= 1) {
      prefetch_rows(at + 2 * rows_per_chunk_, last);
      prepare(chunks_[turn ^ 1], at + rows_per_chunk_, last);
      emit(chunks_[turn], at);
    }
    return cursor_;
  }

 private:
  std::int64_t node_at(std::int64_t row) const { return request_.nodes[static_cast<std::size_t>(row)]; }

  std::uint64_t original_id(std::int64_t node) const {
    if (request_.original_ids.empty()) return static_cast<std::uint64_t>(node);
    return static_cast<std::uint64_t>(request_.original_ids[static_cast<std::size_t>(node)]);
  }

  std::uint64_t key_at(std::int64_t row) const {
    if (request_.trees.empty()) return request_.key;
    return tree_key(request_.key, static_cast<std::uint64_t>(request_.trees[static_cast<std::size_t>(row)]));
  }

  // Always inlined: GCC takes a function that only prefetches for one without effect and drops its calls.
  KHOP_INLINE void prefetch_rows(std::int64_t first, std::int64_t last) const {
    last = std::min(last, first + rows_per_chunk_);
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t node = node_at(i);
      __builtin_prefetch(graph_.indptr.data() + node);
      __builtin_prefetch(graph_.indptr.data() + node + 1);
      if (!request_.original_ids.empty()) __builtin_prefetch(request_.original_ids.data() + node);
    }
  }

  void prepare(Chunk<Index>& chunk, std::int64_t first, std::int64_t last) {
    last = std::min(last, first + rows_per_chunk_);
    chunk.count = 0;
    chunk.draws.count = 0;
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t node = node_at(i);
      const Row<Index> row = row_of(graph_, node);
      chunk.rows[chunk.count] = row;
      chunk.lane[chunk.count++] = place(chunk.draws, row, node, i);
    }
    const auto fanout = static_cast<std::size_t>(request_.fanout);
    if (chunk.draws.count > 0) {
      const auto draw = request_.replacement == Replacement::without ? level_.distinct : level_.repeated;
      draw(chunk.draws, fanout, request_.stream, chunk.picks);
    }
    prefetch_edges(chunk);
  }

  // Where the draws of a row are made.
  std::int32_t place(DrawRows& draws, const Row<Index>& row, std::int64_t node, std::int64_t i) const {
    if (takes_whole_row(request_, row.degree)) return kWhole;
    if (request_.fanout > static_cast<std::int64_t>(kMaxFanout)) return kAlone;
    if (static_cast<std::uint64_t>(row.degree) >= kWideDegree) return kAlone;
    const std::size_t lane = draws.count++;
    const std::uint64_t key = key_at(i), id = original_id(node);
    draws.key_low[lane] = static_cast<std::uint32_t>(key);
    draws.key_high[lane] = static_cast<std::uint32_t>(key >> 32);
    draws.node_low[lane] = static_cast<std::uint32_t>(id);
    draws.node_high[lane] = static_cast<std::uint32_t>(id >> 32);
    draws.degree[lane] = static_cast<std::uint32_t>(row.degree);
    return static_cast<std::int32_t>(lane);
  }

  KHOP_INLINE void prefetch_edges(const Chunk<Index>& chunk) const {
    for (std::size_t r = 0; r < chunk.count; ++r) {
      const Index* const row = graph_.indices.data() + chunk.rows[r].begin;
      if (chunk.lane[r] == kWhole && chunk.rows[r].degree > 0) {
        __builtin_prefetch(row);
        __builtin_prefetch(row + chunk.rows[r].degree - 1);
      } else if (chunk.lane[r] >= 0) {
        const std::uint32_t* picks = chunk.picks + chunk.lane[r];
        for (std::int64_t slot = 0; slot < request_.fanout; ++slot) __builtin_prefetch(row + picks[slot * static_cast<std::int64_t>(kMaxRows)]);
      }
    }
  }

  void emit(const Chunk<Index>& chunk, std::int64_t first) {
    for (std::size_t r = 0; r < chunk.count; ++r) {
      output_.offsets[first + static_cast<std::int64_t>(r)] = cursor_;
      const Row<Index>& row = chunk.rows[r];
      if (chunk.lane[r] == kWhole) {
        emit_whole(row);
      } else if (chunk.lane[r] == kAlone) {
        emit_alone(row, first + static_cast<std::int64_t>(r));
      } else {
        const std::uint32_t* picks = chunk.picks + chunk.lane[r];
        for (std::int64_t slot = 0; slot < request_.fanout; ++slot) put(row.begin + picks[slot * static_cast<std::int64_t>(kMaxRows)]);
      }
    }
  }

  void put(std::int64_t edge) {
    output_.nodes[cursor_] = graph_.indices[static_cast<std::size_t>(edge)];
    if (output_.edges != nullptr) output_.edges[cursor_] = edge;
    ++cursor_;
  }

  void emit_whole(const Row<Index>& row) {
    std::copy_n(graph_.indices.data() + row.begin, row.degree, output_.nodes + cursor_);
    if (output_.edges != nullptr) std::iota(output_.edges + cursor_, output_.edges + cursor_ + row.degree, row.begin);
    cursor_ += row.degree;
  }

  void emit_alone(const Row<Index>& row, std::int64_t i) {
    draw_alone(row, i);
    for (const std::int64_t pick : alone_) __builtin_prefetch(graph_.indices.data() + row.begin + pick);
    for (const std::int64_t pick : alone_) put(row.begin + pick);
  }

  void draw_alone(const Row<Index>& row, std::int64_t i) {
    RowWords words(key_at(i), original_id(node_at(i)), request_.stream);
    const auto degree = static_cast<std::uint64_t>(row.degree);
    alone_.clear();
    taken_.clear();
    for (std::int64_t slot = 0; slot < request_.fanout; ++slot) {
      if (request_.replacement == Replacement::with) {
        alone_.push_back(static_cast<std::int64_t>(words.below(degree, degree)));
        continue;
      }
      const std::int64_t last = row.degree - request_.fanout + slot;
      auto pick = static_cast<std::int64_t>(words.below(static_cast<std::uint64_t>(last) + 1, degree));
      if (!taken_.insert(pick).second) {
        pick = last;
        taken_.insert(pick);
      }
      alone_.push_back(pick);
    }
  }

  const Csc<Index>& graph_;
  const HopRequest& request_;
  const HopOutput<Index>& output_;
  const DrawLevel& level_;
  std::int64_t rows_per_chunk_;
  std::int64_t cursor_ = 0;
  Chunk<Index> chunks_[2];
  std::vector<std::int64_t> alone_;
  std::unordered_set<std::int64_t> taken_;
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
  check_nodes(graph, request.nodes);
  const int parts = parts_for(request.threads, frontier, kRowsPerThread);
  std::vector<std::int64_t> cursors(static_cast<std::size_t>(parts) + 1, 0);
  if (parts > 1) {
    parallel_parts(parts, [&](int part) {
      cursors[static_cast<std::size_t>(part) + 1] =
          count_edges(graph, request, part_begin(frontier, part, parts), part_begin(frontier, part + 1, parts));
    });
    std::partial_sum(cursors.begin(), cursors.end(), cursors.begin());
  }
  parallel_parts(parts, [&](int part) {
    const std::int64_t end = HopWalk<Index>(graph, request, output)
                                 .run(part_begin(frontier, part, parts), part_begin(frontier, part + 1, parts),
                                      cursors[static_cast<std::size_t>(part)]);
    if (part == parts - 1) cursors.back() = end;
  });
  output.offsets[frontier] = cursors.back();
  return cursors.back();
}

template std::int64_t edge_capacity(const Csc<std::int32_t>&, const HopRequest&);
template std::int64_t edge_capacity(const Csc<std::int64_t>&, const HopRequest&);
template std::int64_t sample_hop(const Csc<std::int32_t>&, const HopRequest&, const HopOutput<std::int32_t>&);
template std::int64_t sample_hop(const Csc<std::int64_t>&, const HopRequest&, const HopOutput<std::int64_t>&);

}  // namespace khop
