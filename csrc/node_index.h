// Node ids of one batch -> consecutive local ids, in first-seen order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "node_slots.h"

namespace khop {

// Over one kind of table. Ids are in range already.
template <class Slots>
class SlotIndex {
 public:
  SlotIndex(std::size_t num_nodes, std::uint32_t base) : base_(base), slots_(num_nodes) {}

  // Room and stamps for `most` nodes in all. Throws std::invalid_argument where these are 2^31 or more.
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
  std::vector<typename Slots::Key> nodes_;  // count_ in use, the rest is room
  Slots slots_;
};

// Not thread-safe: one per worker. Memory is kept over clear(), so that a warm index allocates nothing.
class NodeIndex {
 public:
  // Graphs of up to this many nodes get a dense table (4 bytes each); larger ones a hash table that grows with the batch.
  static constexpr std::int64_t kDenseNodes = std::int64_t{1} << 22;

  // Throws std::invalid_argument for a negative number of nodes. `base` is the first stamp, not 0; only tests of what happens when stamps run out give another than 1.
  explicit NodeIndex(std::int64_t num_nodes, std::uint32_t base = 1);

  // local[i] becomes the local id of ids[i]. Throws std::invalid_argument, before anything is inserted, where an id is out
  // of range or where there would be 2^31 nodes or more.
  template <class Id>
  void insert(std::span<const Id> ids, std::int32_t* local);

  // As insert, in parts that the caller makes: room for `more` ids, then ids that are in range. Throws as insert does for their number.
  void reserve(std::size_t more);
  void insert_in_range(std::span<const std::int64_t> ids, std::int32_t* local);

  // local[i] becomes the local id of ids[i], or -1 where that was not inserted. Throws std::invalid_argument where an id is out
  // of range.
  template <class Id>
  void find(std::span<const Id> ids, std::int32_t* local) const;

  // Forgets every node in O(1).
  void clear();

  std::size_t size() const;

  // Writes the ids of local ids start, start + 1, ..., size() - 1.
  void copy_nodes(std::size_t start, std::int64_t* output) const {
    visit_nodes(start, [output](std::size_t i, std::int64_t node) { output[i] = node; });
  }

  // fn(i, node) for them, i from 0 on.
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
