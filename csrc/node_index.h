// Node ids of one batch -> consecutive local ids, in first-seen order.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace khop {

// Slots hold stamp = base + local id. Clearing raises the base above every stamp in use, so that old slots read as empty;
// when the 32-bit stamps run out, the slots are zeroed once and the base starts again at 1.

// One slot per node of the graph.
struct DenseSlots {
  std::vector<std::uint32_t> stamps;
};

// Open addressing with linear probing, at most half full.
template <class Key>
struct HashSlots {
  struct Slot {
    Key key = 0;
    std::uint32_t stamp = 0;
  };
  std::vector<Slot> slots;
  int shift = 0;  // 64 - log2(slots)
};

// Not thread-safe: one per worker. Memory is kept over clear(), so that a warm index allocates nothing.
class NodeIndex {
 public:
  // Graphs of up to this many nodes get a dense table (16 MiB); larger ones a hash table that grows with the batch.
  static constexpr std::int64_t kDenseNodes = std::int64_t{1} << 22;

  // `base` is the first stamp; only tests of stamp exhaustion give another than 1.
  explicit NodeIndex(std::int64_t num_nodes, std::uint32_t base = 1);

  // local[i] becomes the local id of ids[i]. Throws std::invalid_argument, before anything is inserted, where an id is out
  // of range or where the index would exceed 2^31 - 1 nodes.
  template <class Id>
  void insert(std::span<const Id> ids, std::int32_t* local);

  // The ids in local order; valid until the next insert or clear.
  std::span<const std::int64_t> nodes() const { return {nodes_.data(), count_}; }

  // Forgets every node in O(1).
  void clear();

 private:
  template <class Id>
  void check(std::span<const Id> ids) const;
  void reserve(std::size_t ids);
  template <class Id>
  void insert_dense(DenseSlots& table, std::span<const Id> ids, std::int32_t* local);
  template <class Key, class Id>
  void insert_hashed(HashSlots<Key>& table, std::span<const Id> ids, std::int32_t* local);
  template <class Key>
  void grow(HashSlots<Key>& table, std::size_t slots);

  std::int64_t num_nodes_;
  std::uint32_t base_;
  std::size_t count_ = 0;
  std::vector<std::int64_t> nodes_;  // count_ in use, the rest is room
  std::variant<DenseSlots, HashSlots<std::uint32_t>, HashSlots<std::uint64_t>> slots_;
};

}  // namespace khop
