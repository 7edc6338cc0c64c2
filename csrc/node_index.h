// Node ids of one batch -> consecutive local ids, in first-seen order.
#pragma once

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

  // Throws std::invalid_argument, before anything is inserted, where there would be 2^31 nodes or more.
  template <class Id>
  void insert(std::span<const Id> ids, std::size_t num_nodes, std::int32_t* local);
  template <class Id>
  void find(std::span<const Id> ids, std::int32_t* local) const {
    slots_.find(ids, base_, local);
  }
  void clear();
  std::size_t size() const { return count_; }
  void copy_nodes(std::size_t start, std::int64_t* output) const;

 private:
  void reserve(std::size_t most);

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

  // local[i] becomes the local id of ids[i], or -1 where that was not inserted. Throws std::invalid_argument where an id is out
  // of range.
  template <class Id>
  void find(std::span<const Id> ids, std::int32_t* local) const;

  // Forgets every node in O(1).
  void clear();

  std::size_t size() const;

  // Writes the ids of local ids start, start + 1, ..., size() - 1.
  void copy_nodes(std::size_t start, std::int64_t* output) const;

 private:
  using AnyIndex = std::variant<SlotIndex<DenseSlots>, SlotIndex<HashSlots<std::uint32_t>>, SlotIndex<HashSlots<std::uint64_t>>>;

  static AnyIndex index_for(std::int64_t num_nodes, std::uint32_t base);

  std::int64_t num_nodes_;
  AnyIndex index_;
};

}  // namespace khop
