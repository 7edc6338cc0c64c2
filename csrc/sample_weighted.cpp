#include "sample_weighted.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "draw_alone.h"
#include "hop_rows.h"
#include "parallel.h"
#include "random.h"
#include "search.h"
#include "simd.h"

namespace khop {
namespace {

constexpr std::int64_t kRowsPerThread = 256;    // fewer are not worth a thread
constexpr std::int64_t kDrawsPerBlock = 512;    // whose memory is fetched side by side
constexpr std::int64_t kMostRows = 64;          // of a block
constexpr std::int64_t kMostRepeats = 64;       // of a row, before what is left is drawn from exactly
constexpr std::int64_t kMostCompared = 64;      // picks that a repeat is looked for among one by one

// What is known of the weights of one frontier row.
struct WeightedRow {
  std::int64_t begin, degree;
  std::int64_t base;   // the sum before the first entry
  std::int64_t total;  // of all entries
};

// A draw on its way to an edge.
struct Draw {
  std::int64_t bound;  // the edge is the first whose sum is above it
  std::int64_t guess;
};

// Walks a range of frontier rows block by block. Each stage of a block goes over all its rows and asks for the memory that the
// next one reads.
template <class Index>
class WeightedWalk {
 public:
  WeightedWalk(const Csc<Index>& graph, std::span<const std::int64_t> sums, const HopRequest& request,
               const HopOutput<Index>& output)
      : graph_(graph), sums_(sums.data()), request_(request), output_(output), slots_(std::max<std::int64_t>(request.fanout, 0)) {
    block_rows_ = std::clamp<std::int64_t>(kDrawsPerBlock / std::max<std::int64_t>(slots_, 1), 4, kMostRows);
    words_.reserve(static_cast<std::size_t>(block_rows_));
  }

  // Frontier rows [first, last), whose edges start at `cursor`; returns where they end.
  std::int64_t run(std::int64_t first, std::int64_t last, std::int64_t cursor) {
    cursor_ = cursor;
    prefetch_rows(first, std::min(last, first + block_rows_));
    for (std::int64_t at = first; at < last; at += block_rows_) {
      const std::int64_t end = std::min(last, at + block_rows_);
      find_rows(at, end);
      prefetch_rows(end, std::min(last, end + block_rows_));
      draw_block(at, end);
      for (std::int64_t i = at; i < end; ++i) pick_row(i, at);
      emit_block();
    }
    return cursor_;
  }

 private:
  KHOP_INLINE void prefetch_rows(std::int64_t first, std::int64_t last) const {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t node = request_.nodes.data()[i];
      __builtin_prefetch(graph_.indptr.data() + node);
      __builtin_prefetch(graph_.indptr.data() + node + 1);
      if (!request_.original_ids.empty()) __builtin_prefetch(request_.original_ids.data() + node);
    }
  }

  KHOP_INLINE void find_rows(std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const Row row = row_at(graph_, request_, i);
      rows_[i - first] = {row.begin, row.degree, 0, 0};
      if (row.degree == 0) continue;
      __builtin_prefetch(sums_ + row.begin + row.degree - 1);
      if (!request_.ranges.empty()) __builtin_prefetch(sums_ + std::max<std::int64_t>(row.begin - 1, 0));
    }
  }

  std::int64_t sum_before(std::int64_t edge, std::int64_t row_begin) const { return edge == row_begin ? 0 : sums_[edge - 1]; }

  // The slots of each row that has to draw, and their edges on the way from memory.
  KHOP_INLINE void draw_block(std::int64_t first, std::int64_t last) {
    words_.clear();
    draws_.resize(static_cast<std::size_t>((last - first) * slots_));
    for (std::int64_t i = first; i < last; ++i) {
      WeightedRow& row = rows_[i - first];
      const std::int64_t node = request_.nodes.data()[i];
      const std::uint64_t key = request_.trees.empty()
                                    ? request_.key
                                    : tree_key(request_.key, static_cast<std::uint64_t>(request_.trees.data()[i]));
      const std::int64_t id = request_.original_ids.empty() ? node : request_.original_ids.data()[node];
      words_.emplace_back(key, static_cast<std::uint64_t>(id), request_.stream);
      if (row.degree == 0) continue;
      row.base = sum_before(row.begin, graph_.indptr[static_cast<std::size_t>(node)]);
      row.total = sums_[row.begin + row.degree - 1] - row.base;
      if (takes_whole_row(request_, row.degree)) {
        __builtin_prefetch(graph_.indices.data() + row.begin);
        continue;
      }
      Draw* const draws = draws_.data() + (i - first) * slots_;
      for (std::int64_t slot = 0; slot < slots_; ++slot) {
        draws[slot] = drawn(words_.back(), row);
        __builtin_prefetch(sums_ + draws[slot].guess);
      }
    }
  }

  // Equal weights would put the draw at its guess.
  static KHOP_INLINE Draw drawn(RowWords& words, const WeightedRow& row) {
    const std::uint64_t wide = words.wide();
    return {row.base + static_cast<std::int64_t>(RowWords::high_product(wide, static_cast<std::uint64_t>(row.total))),
            row.begin + static_cast<std::int64_t>(RowWords::high_product(wide, static_cast<std::uint64_t>(row.degree)))};
  }

  KHOP_INLINE std::int64_t edge_of(const Draw& draw, const WeightedRow& row) const {
    return first_above(sums_, row.begin, row.begin + row.degree, draw.guess, draw.bound);
  }

  // The edges of one row, behind those of the block's rows before it.
  void pick_row(std::int64_t i, std::int64_t first) {
    output_.offsets[i] = cursor_ + static_cast<std::int64_t>(picks_.size());
    const WeightedRow& row = rows_[i - first];
    if (row.total == 0 || request_.fanout == 0) return;
    const std::size_t before = picks_.size();
    const Draw* const draws = draws_.data() + (i - first) * slots_;
    if (takes_whole_row(request_, row.degree)) {
      pick_whole(row);
    } else if (request_.replacement == Replacement::with) {
      for (std::int64_t slot = 0; slot < slots_; ++slot) picks_.push_back(edge_of(draws[slot], row));
    } else {
      pick_distinct(row, draws, words_[static_cast<std::size_t>(i - first)]);
    }
    for (std::size_t at = before; at < picks_.size(); ++at) __builtin_prefetch(graph_.indices.data() + picks_[at]);
  }

  void pick_whole(const WeightedRow& row) {
    std::int64_t before = row.base;
    for (std::int64_t edge = row.begin; edge < row.begin + row.degree; ++edge) {
      if (sums_[edge] > before) picks_.push_back(edge);
      before = sums_[edge];
    }
  }

  // The first so many distinct edges that the row's draws come upon, in their order.
  void pick_distinct(const WeightedRow& row, const Draw* draws, RowWords& words) {
    const std::size_t before = picks_.size(), wanted = static_cast<std::size_t>(slots_);
    if (slots_ > kMostCompared) taken_.reset(wanted);
    std::int64_t repeats = 0, number = 0;
    for (; picks_.size() - before < wanted && repeats < kMostRepeats; ++number) {
      const std::int64_t edge = edge_of(number < slots_ ? draws[number] : drawn(words, row), row);
      if (is_new(edge, before)) {
        picks_.push_back(edge);
      } else {
        ++repeats;
      }
    }
    if (picks_.size() - before == wanted) return;
    words.seek_wide(static_cast<std::uint64_t>(number));  // of many slots some were drawn and not used
    pick_rest(row, before, wanted, words);
  }

  KHOP_INLINE bool is_new(std::int64_t edge, std::size_t before) {
    if (slots_ > kMostCompared) return taken_.insert(static_cast<std::uint64_t>(edge));
    bool seen = false;
    for (std::size_t at = before; at < picks_.size(); ++at) seen |= picks_[at] == edge;
    return !seen;
  }

  // Draws from the weights that are not picked yet, for as long as there are any.
  void pick_rest(const WeightedRow& row, std::size_t before, std::size_t wanted, RowWords& words) {
    std::vector<std::int64_t> picked(picks_.begin() + static_cast<std::ptrdiff_t>(before), picks_.end());
    std::ranges::sort(picked);
    const auto start_of = [&](std::int64_t edge) { return edge == row.begin ? row.base : sums_[edge - 1]; };
    std::int64_t left = row.total;
    for (const std::int64_t edge : picked) left -= sums_[edge] - start_of(edge);
    for (; left > 0 && picks_.size() - before < wanted;) {
      std::int64_t bound =
          row.base + static_cast<std::int64_t>(RowWords::high_product(words.wide(), static_cast<std::uint64_t>(left)));
      auto place = picked.begin();
      for (; place != picked.end() && bound >= start_of(*place); ++place) bound += sums_[*place] - start_of(*place);
      const std::int64_t edge = first_above(sums_, row.begin, row.begin + row.degree, row.begin, bound);
      picked.insert(place, edge);
      picks_.push_back(edge);
      left -= sums_[edge] - start_of(edge);
    }
  }

  void emit_block() {
    const auto count = static_cast<std::int64_t>(picks_.size());
    Index* const nodes = output_.nodes + cursor_;
    for (std::int64_t at = 0; at < count; ++at) nodes[at] = graph_.indices.data()[picks_[static_cast<std::size_t>(at)]];
    if (output_.edges != nullptr) std::copy(picks_.begin(), picks_.end(), output_.edges + cursor_);
    cursor_ += count;
    picks_.clear();
  }

  const Csc<Index>& graph_;
  const std::int64_t* const sums_;
  const HopRequest& request_;
  const HopOutput<Index>& output_;
  const std::int64_t slots_;
  std::int64_t block_rows_;
  std::int64_t cursor_ = 0;
  WeightedRow rows_[kMostRows];
  std::vector<RowWords> words_;      // of each row of the block
  std::vector<Draw> draws_;          // slots_ for each row of the block
  std::vector<std::int64_t> picks_;  // edges of the block's rows
  PickSet taken_;
};

}  // namespace

template <class Index>
std::int64_t sample_weighted(const Csc<Index>& graph, std::span<const std::int64_t> sums, const HopRequest& request,
                             const HopOutput<Index>& output) {
  if (sums.size() != graph.indices.size()) throw std::invalid_argument("weight sums: one per edge is needed");
  const auto frontier = static_cast<std::int64_t>(request.nodes.size());
  const int parts = parts_for(request.threads, frontier, kRowsPerThread);
  std::vector<std::int64_t> starts(static_cast<std::size_t>(parts) + 1, 0), ends(static_cast<std::size_t>(parts), 0);
  const auto first_row = [&](int part) { return part_begin(frontier, part, parts); };
  for (int part = 0; part + 1 < parts; ++part) {
    const auto at = static_cast<std::size_t>(part);
    starts[at + 1] = starts[at] + count_edges(graph, request, first_row(part), first_row(part + 1));
  }
  parallel_parts(parts, [&](int part) {
    WeightedWalk<Index> walk(graph, sums, request, output);
    const auto at = static_cast<std::size_t>(part);
    ends[at] = walk.run(first_row(part), first_row(part + 1), starts[at]);
  });
  // Rows may have given less than was counted: close the gaps between the parts.
  std::int64_t cursor = ends[0];
  for (int part = 1; part < parts; ++part) {
    const auto at = static_cast<std::size_t>(part);
    const std::int64_t gap = starts[at] - cursor;
    std::copy(output.nodes + starts[at], output.nodes + ends[at], output.nodes + cursor);
    if (output.edges != nullptr) std::copy(output.edges + starts[at], output.edges + ends[at], output.edges + cursor);
    for (std::int64_t i = first_row(part); i < first_row(part + 1); ++i) output.offsets[i] -= gap;
    cursor += ends[at] - starts[at];
  }
  output.offsets[frontier] = cursor;
  return cursor;
}

template std::int64_t sample_weighted(const Csc<std::int32_t>&, std::span<const std::int64_t>, const HopRequest&,
                                      const HopOutput<std::int32_t>&);
template std::int64_t sample_weighted(const Csc<std::int64_t>&, std::span<const std::int64_t>, const HopRequest&,
                                      const HopOutput<std::int64_t>&);

}  // namespace khop
