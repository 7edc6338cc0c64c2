// Mapping of the node ids of a batch to consecutive local ids, in first-seen order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "node_slots.h"

namespace khop {

// Over one kind of table. Ids must be in range.
template <class Slots>
class SlotIndex {
 public:
  SlotIndex(std::size_t num_nodes, std::uint32_t base) : base_(base), slots_(num_nodes) {}

  // Reserves room and stamps for `most` nodes in total. Throws std::invalid_argument for 2^31 or more.
  void reserve(std::size_t most);
  // After reserve().
  template <class Id>
  void insert(std::span<const Id> ids, std::int32_t* local) {
    count_ = slots_.insert(ids, base_, count_, nodes_.data(), local);
  }
  template <class Id>
  void find(std::span<const Id> ids, std::int32_t* local) const {
    slots_.find(ids, base_, local);
  }
  void clear();
  std::size_t size() const { return count_; }
  std::span<const typename Slots::Key> nodes() const { return {nodes_.data(), count_}; }

 private:
  std::uint32_t base_;
  std::size_t count_ = 0;
  std::vector<typename Slots::Key> nodes_;  // the first count_ are in use
  Slots slots_;
};

// Not thread-safe: one per worker. clear() keeps memory, so reusing an index avoids allocations.
class NodeIndex {
 public:
  // Graphs of up to this many nodes get a dense table (4 bytes each); larger ones a hash table that grows with the batch.
  static constexpr std::int64_t kDenseNodes = std::int64_t{1} << 22;

  // Throws std::invalid_argument for a negative number of nodes. `base` is the first stamp, not 0; only tests of the end of the
  // stamps pass a value other than 1.
  explicit NodeIndex(std::int64_t num_nodes, std::uint32_t base = 1);

  // local[i] becomes the local id of ids[i]. Throws std::invalid_argument, before inserting, for an id out of range and for 2^31 or
  // more nodes.
  template <class Id>
  void insert(std::span<const Id> ids, std::int32_t* local);

  // Like insert, in two steps: room for `more` ids, then ids in range. Throws like insert for too many nodes.
  void reserve(std::size_t more);
  void insert_in_range(std::span<const std::int64_t> ids, std::int32_t* local);

  // local[i] becomes the local id of ids[i], or -1 if it was not inserted. Throws std::invalid_argument for an id out of range.
  template <class Id>
  void find(std::span<const Id> ids, std::int32_t* local) const;

  // Removes all nodes in O(1).
  void clear();

  std::size_t size() const;

  // Writes the ids of local ids start, start + 1, ..., size() - 1.
  void copy_nodes(std::size_t start, std::int64_t* output) const {
    visit_nodes(start, [output](std::size_t i, std::int64_t node) { output[i] = node; });
  }

  // fn(i, node) for them, with i from 0.
  template <class Fn>
  void visit_nodes(std::size_t start, const Fn& fn) const {
    std::visit(
        [&](const auto& index) {
          const auto nodes = index.nodes().subspan(std::min(start, index.size()));
          for (std::size_t i = 0; i < nodes.size(); ++i) fn(i, static_cast<std::int64_t>(nodes[i]));
        },
        index_);
  }

 private:
  using AnyIndex = std::variant<SlotIndex<DenseSlots>, SlotIndex<HashSlots<std::uint32_t>>, SlotIndex<HashSlots<std::uint64_t>>>;

  static AnyIndex index_for(std::int64_t num_nodes, std::uint32_t base);

  std::int64_t num_nodes_;
  AnyIndex index_;
};

}  // namespace khop
