// Mapping of the (tree, node) pairs of a batch of disjoint trees to consecutive local ids, in first-seen order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "node_index.h"

namespace khop {

// Not thread-safe: one per worker. reset() keeps memory, so reusing an index avoids allocations.
class TreeIndex {
 public:
  // Throws std::invalid_argument unless the number of nodes is from 0 to 2^62.
  explicit TreeIndex(std::int64_t num_nodes);

  // Removes all pairs and makes room for trees 0 to num_trees - 1. Throws std::invalid_argument for a negative number, and if tree
  // and node together exceed 63 bits.
  void reset(std::int64_t num_trees);

  // Node ids[e] is in the tree trees[row] of the row that has edge e: offsets[row] <= e < offsets[row + 1]; local[e] becomes
  // its local id. Offsets ascend from 0 to the number of ids. Throws std::invalid_argument, before inserting, for an offset, a
  // tree or an id out of range, and for 2^31 or more pairs.
  template <class Id>
  void insert(std::span<const Id> ids, std::span<const std::int64_t> offsets, std::span<const std::int64_t> trees,
              std::int32_t* local);

  std::size_t size() const { return index_.size(); }

  // Writes node and tree of local ids start, start + 1, ..., size() - 1.
  void copy_pairs(std::size_t start, std::int64_t* nodes, std::int64_t* trees) const;

 private:
  static constexpr std::size_t kPairsAtOnce = 4096;  // or those of a longer row: they fit in the L1 cache
  static constexpr std::size_t kStep = 8;  // written per row regardless of its unpredictable length; the next row overwrites the excess

  std::size_t spread(std::span<const std::int64_t> offsets, std::span<const std::int64_t> trees, std::size_t row);

  std::int64_t num_nodes_;
  int node_bits_;              // a pair is one number: the tree above the node
  std::int64_t num_trees_ = 0;
  std::int64_t capacity_ = 1;  // trees that index_ has room for
  NodeIndex index_;
  std::vector<std::int64_t> pairs_ = std::vector<std::int64_t>(kPairsAtOnce + kStep);  // scratch
};

}  // namespace khop
