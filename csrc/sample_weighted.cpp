#include "sample_weighted.h"

#include <algorithm>
#include <string>
#include <vector>

#include "draw_alone.h"
#include "draw_rows.h"
#include "hop_rows.h"
#include "parallel.h"
#include "random.h"
#include "search.h"
#include "simd.h"

namespace khop {
namespace {

constexpr std::int64_t kRowsPerThread = 256;  // fewer are not worth a thread
constexpr std::int64_t kDrawsPerBlock = 512;  // draws whose memory is prefetched together
constexpr std::int64_t kMostRepeats = 64;     // per row, before the rest is drawn exactly
constexpr std::int64_t kMostCompared = 64;    // with at most this many picks, repeats are found by comparing
constexpr auto kMostRows = static_cast<std::int64_t>(kMaxRows);
constexpr auto kMostInLanes = static_cast<std::int64_t>(kMaxFanout / 2);  // slots whose words are computed for many rows at a time

// The state of a frontier row.
struct WeightedRow {
  std::int64_t begin, degree;
  OutlinedRow outline;
  std::int64_t base;    // the sum before the first entry
  std::int64_t total;   // the sum of all entries
  double slope;         // entries per unit of weight
  std::uint64_t key, id;
  std::int64_t number;  // 64-bit draws made so far
  std::int64_t repeats;
  std::int64_t picked;  // edges found so far
  bool whole;           // returned without draws
};

// Processes a range of frontier rows by blocks. Each stage of a block iterates over all its rows and prefetches for the next stage.
template <class Index>
class WeightedWalk {
 public:
  WeightedWalk(const Csc<Index>& graph, const Rising& sums, const HopRequest& request, const HopOutput<Index>& output)
      : graph_(graph),
        sums_(sums.values.data()),
        outline_(sums.outline.data()),
        request_(request),
        output_(output),
        slots_(std::max<std::int64_t>(request.fanout, 0)),
        block_rows_(std::clamp<std::int64_t>(kDrawsPerBlock / std::max<std::int64_t>(slots_, 1), 4, kMostRows)),
        searches_(sums, 0) {}

  // Processes frontier rows [first, last), whose edges start at `cursor`; returns their end.
  std::int64_t run(std::int64_t first, std::int64_t last, std::int64_t cursor) {
    cursor_ = cursor;
    prefetch_rows(first, std::min(last, first + block_rows_));
    for (std::int64_t at = first; at < last; at += block_rows_) {
      const std::int64_t end = std::min(last, at + block_rows_);
      first_ = at;
      find_rows(at, end);
      prefetch_rows(end, std::min(last, end + block_rows_));
      weigh_rows(at, end);
      draw_rows();
      while (!drawing_.empty()) {
        searches_.finish(Found{draws_.data()});
        prefetch_edges();
        pick();
      }
      emit(at, end);
    }
    return cursor_;
  }

 private:
  // The result of a draw's edge.
  struct Found {
    std::int64_t* draws;
    KHOP_INLINE void operator()(std::int64_t slot, std::int64_t edge) const { draws[slot] = edge; }
  };

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
      const Row found = row_at(graph_, request_, i);
      WeightedRow& row = rows_[i - first];
      row = {};
      row.begin = found.begin;
      row.degree = found.degree;
      if (!request_.ranges.empty()) check_range(i, found);
    }
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t node = request_.nodes.data()[i];
      prefetch_outline(outline_, node, graph_.indptr.data()[node]);
    }
    for (std::int64_t i = first; i < last && !request_.ranges.empty(); ++i) {
      const WeightedRow& row = rows_[i - first];
      __builtin_prefetch(sums_ + std::max<std::int64_t>(row.begin + row.degree - 1, 0));
      __builtin_prefetch(sums_ + std::max<std::int64_t>(row.begin - 1, 0));
    }
  }

  // A range is a part of its node's row, and sums are per row.
  KHOP_INLINE void check_range(std::int64_t i, const Row& range) const {
    const std::int64_t node = request_.nodes.data()[i];
    const std::int64_t begin = graph_.indptr.data()[node], end = graph_.indptr.data()[node + 1];
    if (begin < 0 || begin > end || end > static_cast<std::int64_t>(graph_.indices.size())) refuse_row(graph_, node, begin, end, true);
    const bool is_part = begin <= range.begin && range.begin + range.degree <= end;
    if (range.degree > 0 && !is_part) refuse_row(graph_, node, range.begin, range.begin + range.degree, false);
  }

  // Finds the weights to draw from, and the rows that draw.
  KHOP_INLINE void weigh_rows(std::int64_t first, std::int64_t last) {
    drawing_.clear();
    for (std::int64_t i = first; i < last; ++i) {
      WeightedRow& row = rows_[i - first];
      row.whole = takes_whole_row(request_, row.degree);
      if (row.degree == 0) continue;
      const std::int64_t node = request_.nodes.data()[i], row_begin = graph_.indptr.data()[node];
      row.base = row.begin == row_begin ? 0 : sums_[row.begin - 1];
      if (row.whole) {
        __builtin_prefetch(graph_.indices.data() + row.begin);
        __builtin_prefetch(sums_ + row.begin);
        __builtin_prefetch(sums_ + row.begin + row.degree - 1);
        continue;
      }
      row.outline = outlined_row(outline_, node, row_begin);
      row.total = (request_.ranges.empty() ? row.outline.last : sums_[row.begin + row.degree - 1]) - row.base;
      if (row.total <= 0 || slots_ == 0) continue;
      row.slope = static_cast<double>(row.degree) / static_cast<double>(row.total);
      row.key = request_.trees.empty() ? request_.key : tree_key(request_.key, static_cast<std::uint64_t>(request_.trees.data()[i]));
      row.id = static_cast<std::uint64_t>(request_.original_ids.empty() ? node : request_.original_ids.data()[node]);
      drawing_.push_back(i - first);
    }
  }

  // Called for the first row that draws: the fanout may be far above all degrees.
  [[gnu::noinline]] void allocate() {
    const std::int64_t slots = block_rows_ * slots_;
    draws_.resize(static_cast<std::size_t>(slots));
    picks_.resize(static_cast<std::size_t>(slots));
    searches_.resize(static_cast<std::size_t>(std::min(slots, kDrawsPerBlock)));
  }

  // Makes the first `slots_` draws of every row that draws.
  KHOP_INLINE void draw_rows() {
    if (drawing_.empty()) return;
    if (draws_.empty()) allocate();
    if (slots_ > kMostInLanes) {
      for (const std::int64_t r : drawing_) draw_more(r);
      return;
    }
    lanes_.count = drawing_.size();
    for (std::size_t lane = 0; lane < lanes_.count; ++lane) {
      const WeightedRow& row = rows_[drawing_[lane]];
      lanes_.key_low[lane] = static_cast<std::uint32_t>(row.key);
      lanes_.key_high[lane] = static_cast<std::uint32_t>(row.key >> 32);
      lanes_.node_low[lane] = static_cast<std::uint32_t>(row.id);
      lanes_.node_high[lane] = static_cast<std::uint32_t>(row.id >> 32);
    }
    draw_functions().words(lanes_, static_cast<std::size_t>(2 * slots_), request_.stream, words_);
    for (std::size_t lane = 0; lane < lanes_.count; ++lane) {
      WeightedRow& row = rows_[drawing_[lane]];
      const std::int64_t first = drawing_[lane] * slots_;
      const std::uint32_t* const words = words_ + lane;
      for (std::int64_t slot = 0; slot < slots_; ++slot) {
        const std::uint64_t high = words[(2 * slot + 1) * kMostRows];
        search(first + slot, row, words[2 * slot * kMostRows] | high << 32);
      }
      row.number = slots_;
    }
  }

  // Makes one more draw per missing edge of a row.
  void draw_more(std::int64_t r) {
    WeightedRow& row = rows_[r];
    RowWords words(row.key, row.id, request_.stream);
    words.seek_wide(static_cast<std::uint64_t>(row.number));
    for (std::int64_t slot = row.picked; slot < slots_; ++slot) {
      if (searches_.is_full()) searches_.finish(Found{draws_.data()});
      search(r * slots_ + slot, row, words.wide());
    }
    row.number += slots_ - row.picked;
  }

  // Starts the search for the edge of a draw. With equal weights, the guess is exact.
  KHOP_INLINE void search(std::int64_t slot, const WeightedRow& row, std::uint64_t wide) {
    const auto height = static_cast<std::int64_t>(RowWords::high_product(wide, static_cast<std::uint64_t>(row.total)));
    const auto guess = std::min(static_cast<std::int64_t>(static_cast<double>(height) * row.slope), row.degree - 1);
    searches_.begin(slot, row.outline, row.begin, row.begin + row.degree, row.begin + guess, row.base + height, Found{draws_.data()});
  }

  // A separate loop: after a TLB miss, only some hundred further instructions are executed ahead, which then are other
  // prefetches.
  KHOP_INLINE void prefetch_edges() const {
    for (const std::int64_t r : drawing_) {
      const std::int64_t* const draws = draws_.data() + r * slots_;
      for (std::int64_t slot = rows_[r].picked; slot < slots_; ++slot) __builtin_prefetch(graph_.indices.data() + draws[slot]);
    }
  }

  // Accepts the draws of every row, in order. Rows with repeated edges draw again.
  void pick() {
    std::size_t left = 0;
    for (const std::int64_t r : drawing_) {
      pick_row(rows_[r], r);
      if (rows_[r].picked == slots_ || rows_[r].repeats >= kMostRepeats) continue;
      draw_more(r);
      drawing_[left++] = r;
    }
    drawing_.resize(left);
  }

  KHOP_INLINE void pick_row(WeightedRow& row, std::int64_t r) {
    const std::int64_t* const draws = draws_.data() + r * slots_;
    std::int64_t* const picks = picks_.data() + r * slots_;
    const bool distinct = request_.replacement == Replacement::without;
    const bool compared = slots_ <= kMostCompared;
    if (distinct && !compared) collect(picks, row.picked);
    const std::int64_t first = row.picked, made = row.number;
    for (std::int64_t slot = first; slot < slots_; ++slot) {
      const std::int64_t edge = draws[slot];
      if (edge >= row.begin + row.degree) [[unlikely]] refuse_sums(r);
      if (distinct && !(compared ? is_new(picks, row.picked, edge) : taken_.insert(static_cast<std::uint64_t>(edge)))) {
        if (++row.repeats < kMostRepeats) continue;
        row.number = made - (slots_ - 1 - slot);  // later draws were not used
        pick_rest(row, picks);
        return;
      }
      picks[row.picked++] = edge;
    }
  }

  // A draw beyond the row's last sum: the sums or their outline do not match the weights.
  [[noreturn, gnu::cold, gnu::noinline]] void refuse_sums(std::int64_t r) const {
    throw DamagedArray("weight_sums", "row " + std::to_string(request_.nodes[static_cast<std::size_t>(first_ + r)]) +
                                          ": the sums of its weights do not rise as their outline says");
  }

  static KHOP_INLINE bool is_new(const std::int64_t* picks, std::int64_t picked, std::int64_t edge) {
    bool seen = false;
    for (std::int64_t at = 0; at < picked; ++at) seen |= picks[at] == edge;
    return !seen;
  }

  void collect(const std::int64_t* picks, std::int64_t picked) {
    taken_.reset(static_cast<std::size_t>(slots_));
    for (std::int64_t at = 0; at < picked; ++at) taken_.insert(static_cast<std::uint64_t>(picks[at]));
  }

  // Draws from the remaining weights, if any.
  void pick_rest(WeightedRow& row, std::int64_t* picks) {
    RowWords words(row.key, row.id, request_.stream);
    words.seek_wide(static_cast<std::uint64_t>(row.number));
    std::vector<std::int64_t> sorted(picks, picks + row.picked);
    std::ranges::sort(sorted);
    const auto start_of = [&](std::int64_t edge) { return edge == row.begin ? row.base : sums_[edge - 1]; };
    std::int64_t left = row.total;
    for (const std::int64_t edge : sorted) left -= sums_[edge] - start_of(edge);
    while (left > 0 && row.picked < slots_) {
      std::int64_t bound =
          row.base + static_cast<std::int64_t>(RowWords::high_product(words.wide(), static_cast<std::uint64_t>(left)));
      auto place = sorted.begin();
      for (; place != sorted.end() && bound >= start_of(*place); ++place) bound += sums_[*place] - start_of(*place);
      const std::int64_t edge = first_above(sums_, row.begin, row.begin + row.degree, row.begin, bound);
      if (edge == row.begin + row.degree) refuse_sums(&row - rows_);
      sorted.insert(place, edge);
      picks[row.picked++] = edge;
      left -= sums_[edge] - start_of(edge);
    }
  }

  void emit(std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      output_.offsets[i] = cursor_;
      const WeightedRow& row = rows_[i - first];
      if (row.whole) {
        emit_whole(row);
        continue;
      }
      if (row.picked == 0) continue;
      const std::int64_t* const picks = picks_.data() + (i - first) * slots_;
      for (std::int64_t at = 0; at < row.picked; ++at) output_.nodes[cursor_ + at] = graph_.indices.data()[picks[at]];
      if (output_.edges != nullptr) std::copy_n(picks, row.picked, output_.edges + cursor_);
      cursor_ += row.picked;
    }
  }

  void emit_whole(const WeightedRow& row) {
    std::int64_t before = row.base;
    for (std::int64_t edge = row.begin; edge < row.begin + row.degree; ++edge) {
      const bool weighs = sums_[edge] > before;
      before = sums_[edge];
      if (!weighs) continue;
      output_.nodes[cursor_] = graph_.indices.data()[edge];
      if (output_.edges != nullptr) output_.edges[cursor_] = edge;
      ++cursor_;
    }
  }

  const Csc<Index>& graph_;
  const std::int64_t* const sums_;
  const std::int16_t* const outline_;
  const HopRequest& request_;
  const HopOutput<Index>& output_;
  const std::int64_t slots_;
  const std::int64_t block_rows_;
  std::int64_t cursor_ = 0;
  std::int64_t first_ = 0;  // frontier row of the block
  WeightedRow rows_[kMaxRows];
  std::vector<std::int64_t> drawing_;  // the block's rows that need more edges
  std::vector<std::int64_t> draws_;    // the edge of each draw, slots_ for each row of the block
  std::vector<std::int64_t> picks_;    // edges, slots_ for each row of the block
  RisingSearches searches_;
  DrawRows lanes_;
  alignas(64) std::uint32_t words_[kMaxRows * kMaxFanout];
  PickSet taken_;
};

}  // namespace

template <class Index>
std::int64_t sample_weighted(const Csc<Index>& graph, const Rising& sums, const HopRequest& request, const HopOutput<Index>& output) {
  check_rising(sums, static_cast<std::int64_t>(graph.indices.size()), graph.rows(), "weight sums");
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
  // Rows may have fewer edges than counted: close the gaps between the parts.
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

template std::int64_t sample_weighted(const Csc<std::int32_t>&, const Rising&, const HopRequest&, const HopOutput<std::int32_t>&);
template std::int64_t sample_weighted(const Csc<std::int64_t>&, const Rising&, const HopRequest&, const HopOutput<std::int64_t>&);

}  // namespace khop
