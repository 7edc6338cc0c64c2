#include "exclude_edges.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

#include "random.h"

namespace khop {
namespace {

std::size_t hashed(std::uint64_t key, int shift) { return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15) >> shift); }

// The excluded pairs: a bit per hash of a destination, which rules out most rows, and the pairs by open addressing, at most half
// full.
class PairTable {
 public:
  explicit PairTable(const NodePairs& pairs)
      : pairs_(pairs), slots_(std::bit_ceil(2 * pairs.sources.size() + 2), kEmpty), has_(8 * slots_.size()),
        slot_shift_(64 - std::countr_zero(slots_.size())), has_shift_(slot_shift_ - 3) {
    for (std::size_t pair = 0; pair < pairs.sources.size(); ++pair) {
      has_[hashed(static_cast<std::uint64_t>(pairs.destinations[pair]), has_shift_)] = true;
      slots_[slot_of(pairs.sources[pair], pairs.destinations[pair])] = static_cast<std::int64_t>(pair);
    }
  }

  bool may_hold(std::int64_t destination) const {
    return has_[hashed(static_cast<std::uint64_t>(destination), has_shift_)];
  }

  bool holds(std::int64_t source, std::int64_t destination) const { return slots_[slot_of(source, destination)] != kEmpty; }

 private:
  static constexpr std::int64_t kEmpty = -1;

  // The slot of a pair, or the empty slot for it.
  std::size_t slot_of(std::int64_t source, std::int64_t destination) const {
    const auto key = mix64(static_cast<std::uint64_t>(source)) ^ static_cast<std::uint64_t>(destination);
    std::size_t at = hashed(key, slot_shift_);
    for (; slots_[at] != kEmpty; at = (at + 1) & (slots_.size() - 1)) {
      const auto pair = static_cast<std::size_t>(slots_[at]);
      if (pairs_.sources[pair] == source && pairs_.destinations[pair] == destination) break;
    }
    return at;
  }

  const NodePairs& pairs_;
  std::vector<std::int64_t> slots_;
  std::vector<bool> has_;
  int slot_shift_;
  int has_shift_;
};

// Copies kept edges in runs of maximum length, because most rows keep all edges.
template <class Index>
class Copier {
 public:
  Copier(const DrawnEdges<Index>& drawn, const KeptEdges<Index>& kept) : drawn_(drawn), kept_(kept) {}

  void drop(std::int64_t edge) {
    copy_until(edge);
    begin_ = edge + 1;
    ++dropped_;
  }

  void copy_until(std::int64_t end) {
    std::copy_n(drawn_.sources.data() + begin_, end - begin_, kept_.sources + (begin_ - dropped_));
    if (kept_.ids != nullptr) std::copy_n(drawn_.ids.data() + begin_, end - begin_, kept_.ids + (begin_ - dropped_));
    begin_ = end;
  }

  std::int64_t dropped() const { return dropped_; }

 private:
  const DrawnEdges<Index>& drawn_;
  const KeptEdges<Index>& kept_;
  std::int64_t begin_ = 0;  // of the run to copy
  std::int64_t dropped_ = 0;
};

}  // namespace

template <class Index>
std::int64_t exclude_edges(const DrawnEdges<Index>& drawn, const NodePairs& excluded, const KeptEdges<Index>& kept) {
  const PairTable table(excluded);
  Copier<Index> copier(drawn, kept);
  for (std::size_t row = 0; row < drawn.rows.size(); ++row) {
    kept.offsets[row] = drawn.offsets[row] - copier.dropped();
    const std::int64_t destination = drawn.rows[row];
    if (!table.may_hold(destination)) continue;
    for (std::int64_t edge = drawn.offsets[row]; edge < drawn.offsets[row + 1]; ++edge) {
      if (table.holds(static_cast<std::int64_t>(drawn.sources[static_cast<std::size_t>(edge)]), destination)) copier.drop(edge);
    }
  }
  const std::int64_t edges = drawn.offsets.back();
  copier.copy_until(edges);
  kept.offsets[drawn.rows.size()] = edges - copier.dropped();
  return edges - copier.dropped();
}

template std::int64_t exclude_edges(const DrawnEdges<std::int32_t>&, const NodePairs&, const KeptEdges<std::int32_t>&);
template std::int64_t exclude_edges(const DrawnEdges<std::int64_t>&, const NodePairs&, const KeptEdges<std::int64_t>&);

}  // namespace khop
