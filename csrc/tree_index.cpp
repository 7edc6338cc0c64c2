#include "tree_index.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "checks.h"

namespace khop {
namespace {

int bits_for(std::int64_t count) { return count > 1 ? std::bit_width(static_cast<std::uint64_t>(count - 1)) : 0; }

[[noreturn]] void refuse(const char* what, std::int64_t id, std::int64_t limit) {
  throw std::invalid_argument(std::string(what) + ' ' + std::to_string(id) + ": not in [0, " + std::to_string(limit) + ')');
}

std::int64_t checked_count(std::int64_t num_nodes) {
  constexpr std::int64_t most = std::int64_t{1} << 62;
  if (num_nodes < 0 || num_nodes > most) refuse("number of nodes", num_nodes, most + 1);
  return num_nodes;
}

}  // namespace

TreeIndex::TreeIndex(std::int64_t num_nodes)
    : num_nodes_(checked_count(num_nodes)), node_bits_(bits_for(num_nodes)), index_(std::int64_t{1} << node_bits_) {}

void TreeIndex::reset(std::int64_t num_trees) {
  if (num_trees < 0) throw std::invalid_argument(std::to_string(num_trees) + " trees: must not be negative");
  index_.clear();
  num_trees_ = num_trees;
  if (num_trees <= capacity_) return;
  if (bits_for(num_trees) + node_bits_ > 62) {
    throw std::invalid_argument(std::to_string(num_trees) + " disjoint trees over " + std::to_string(num_nodes_) +
                                " nodes do not fit 63 bits: make the batch smaller");
  }
  capacity_ = std::int64_t{1} << bits_for(num_trees);
  index_ = NodeIndex(capacity_ << node_bits_);
}

template <class Id>
void TreeIndex::insert(std::span<const Id> ids, std::span<const std::int64_t> offsets, std::span<const std::int64_t> trees,
                       std::int32_t* local) {
  if (offsets.size() != trees.size() + 1) throw std::invalid_argument("offsets and trees: one offset more is needed");
  if (const std::int64_t at = first_wrong_offset(offsets, static_cast<std::int64_t>(ids.size())); at >= 0) {
    throw std::invalid_argument("offset " + std::to_string(offsets[static_cast<std::size_t>(at)]) + " at position " +
                                std::to_string(at) + ": offsets must rise from 0 to the number of ids");
  }
  if (const std::int64_t at = first_outside(trees, num_trees_, 1); at >= 0) {
    refuse("tree", trees[static_cast<std::size_t>(at)], num_trees_);
  }
  if (const std::int64_t at = first_outside(ids, num_nodes_, 1); at >= 0) {
    refuse("node id", ids[static_cast<std::size_t>(at)], num_nodes_);
  }
  index_.reserve(ids.size());
  for (std::size_t row = 0; row < trees.size();) {
    const auto first = static_cast<std::size_t>(offsets[row]);
    row = spread(offsets, trees, row);
    const std::size_t count = static_cast<std::size_t>(offsets[row]) - first;
    for (std::size_t e = 0; e < count; ++e) pairs_[e] |= static_cast<std::int64_t>(ids[first + e]);
    index_.insert_in_range({pairs_.data(), count}, local + first);
  }
}

// Writes the tree of each edge of rows from `row` on, until the scratch is full; returns the next row.
std::size_t TreeIndex::spread(std::span<const std::int64_t> offsets, std::span<const std::int64_t> trees, std::size_t row) {
  const auto first = static_cast<std::size_t>(offsets[row]);
  std::size_t end = first;
  for (; row < trees.size() && end - first < kPairsAtOnce; ++row) {
    const std::size_t at = end - first;
    end = static_cast<std::size_t>(offsets[row + 1]);
    if (end - first + kStep > pairs_.size()) [[unlikely]] pairs_.resize(2 * (end - first) + kStep);
    std::int64_t* const to = pairs_.data() + at;
    const std::int64_t tree = trees[row] << node_bits_;
    for (std::size_t e = 0; e < kStep; ++e) to[e] = tree;
    for (std::size_t e = kStep; e < end - first - at; ++e) to[e] = tree;
  }
  return row;
}

void TreeIndex::copy_pairs(std::size_t start, std::int64_t* nodes, std::int64_t* trees) const {
  const std::int64_t node_mask = (std::int64_t{1} << node_bits_) - 1;
  const int node_bits = node_bits_;
  index_.visit_nodes(start, [=](std::size_t i, std::int64_t pair) {
    nodes[i] = pair & node_mask;
    trees[i] = pair >> node_bits;
  });
}

template void TreeIndex::insert(std::span<const std::int32_t>, std::span<const std::int64_t>, std::span<const std::int64_t>,
                                std::int32_t*);
template void TreeIndex::insert(std::span<const std::int64_t>, std::span<const std::int64_t>, std::span<const std::int64_t>,
                                std::int32_t*);

}  // namespace khop
