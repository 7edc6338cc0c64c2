#include "node_index.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>

namespace khop {
namespace {

constexpr std::size_t kAhead = 24;   // ids between a slot's prefetch and its use
constexpr std::size_t kBlock = 256;  // ids inserted between two looks at the fill of a hash table
constexpr std::size_t kMostNodes = std::numeric_limits<std::int32_t>::max();

// Fibonacci hashing (Knuth, TAOCP 3, 6.4): the high bits of a product are well mixed even for consecutive ids.
std::size_t home(std::uint64_t key, int shift) { return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15) >> shift); }

template <class Key>
HashSlots<Key> hash_slots(std::size_t slots) {
  return {std::vector<typename HashSlots<Key>::Slot>(slots), 64 - std::countr_zero(slots)};
}

}  // namespace

NodeIndex::NodeIndex(std::int64_t num_nodes, std::uint32_t base) : num_nodes_(num_nodes), base_(base) {
  if (num_nodes <= kDenseNodes) {
    slots_ = DenseSlots{std::vector<std::uint32_t>(static_cast<std::size_t>(num_nodes))};
  } else if (num_nodes <= std::int64_t{1} << 32) {
    slots_ = hash_slots<std::uint32_t>(4 * kBlock);
  } else {
    slots_ = hash_slots<std::uint64_t>(4 * kBlock);
  }
}

template <class Id>
void NodeIndex::insert(std::span<const Id> ids, std::int32_t* local) {
  check(ids);
  reserve(ids.size());
  std::visit(
      [&]<class Slots>(Slots& slots) {
        if constexpr (std::is_same_v<Slots, DenseSlots>) {
          insert_dense(slots, ids, local);
        } else {
          insert_hashed(slots, ids, local);
        }
      },
      slots_);
}

template <class Id>
void NodeIndex::check(std::span<const Id> ids) const {
  using Unsigned = std::make_unsigned_t<Id>;
  Unsigned largest = 0;
  for (const Id id : ids) largest = std::max(largest, static_cast<Unsigned>(id));
  if (ids.empty() || static_cast<std::uint64_t>(largest) < static_cast<std::uint64_t>(num_nodes_)) return;
  const auto bad = std::ranges::find(ids, static_cast<Id>(largest));
  throw std::invalid_argument("node id " + std::to_string(*bad) + " at position " + std::to_string(bad - ids.begin()) +
                              ": not in [0, " + std::to_string(num_nodes_) + "), the graph's nodes");
}

// Room for `ids` more nodes and as many stamps.
void NodeIndex::reserve(std::size_t ids) {
  const std::size_t most = count_ + std::min(ids, static_cast<std::size_t>(num_nodes_) - count_);
  if (most > kMostNodes) throw std::invalid_argument("a batch may hold 2^31 - 1 nodes; make it smaller");
  // One entry more than can be in use: the dense table writes there what it does not count.
  if (nodes_.size() < most + 1) nodes_.resize(std::max(most + 1, nodes_.size() + nodes_.size() / 2));
  if (base_ <= std::numeric_limits<std::uint32_t>::max() - most) return;
  base_ = 1;
  std::visit(
      [&]<class Slots>(Slots& slots) {
        if constexpr (std::is_same_v<Slots, DenseSlots>) {
          std::ranges::fill(slots.stamps, 0);
          for (std::size_t i = 0; i < count_; ++i) {
            slots.stamps[static_cast<std::size_t>(nodes_[i])] = base_ + static_cast<std::uint32_t>(i);
          }
        } else {
          grow(slots, slots.slots.size());
        }
      },
      slots_);
}

template <class Id>
void NodeIndex::insert_dense(DenseSlots& table, std::span<const Id> ids, std::int32_t* local) {
  std::uint32_t* const stamps = table.stamps.data();
  std::int64_t* const nodes = nodes_.data();
  const std::uint32_t base = base_;
  std::uint32_t next = base + static_cast<std::uint32_t>(count_);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + kAhead < ids.size()) __builtin_prefetch(stamps + ids[i + kAhead], 1);
    const auto node = static_cast<std::size_t>(ids[i]);
    // No branch on "seen before": it is a coin toss, and a wrong guess costs more than two stores.
    const std::uint32_t stamp = stamps[node];
    const bool is_new = stamp < base;
    const std::uint32_t now = is_new ? next : stamp;
    stamps[node] = now;
    nodes[next - base] = static_cast<std::int64_t>(node);
    local[i] = static_cast<std::int32_t>(now - base);
    next += is_new;
  }
  count_ = next - base;
}

template <class Key, class Id>
void NodeIndex::insert_hashed(HashSlots<Key>& table, std::span<const Id> ids, std::int32_t* local) {
  for (std::size_t first = 0; first < ids.size(); first += kBlock) {
    const std::size_t last = std::min(first + kBlock, ids.size());
    if (2 * (count_ + kBlock) > table.slots.size()) grow(table, 2 * table.slots.size());
    auto* const slots = table.slots.data();
    const std::size_t mask = table.slots.size() - 1;
    for (std::size_t i = first; i < last; ++i) {
      if (i + kAhead < ids.size()) {
        __builtin_prefetch(slots + home(static_cast<std::uint64_t>(ids[i + kAhead]), table.shift), 1);
      }
      const auto key = static_cast<Key>(ids[i]);
      std::size_t at = home(key, table.shift);
      while (slots[at].stamp >= base_ && slots[at].key != key) at = (at + 1) & mask;
      if (slots[at].stamp < base_) {
        slots[at] = {key, base_ + static_cast<std::uint32_t>(count_)};
        nodes_[count_++] = static_cast<std::int64_t>(ids[i]);
      }
      local[i] = static_cast<std::int32_t>(slots[at].stamp - base_);
    }
  }
}

template <class Key>
void NodeIndex::grow(HashSlots<Key>& table, std::size_t slots) {
  table = hash_slots<Key>(slots);
  const std::size_t mask = slots - 1;
  for (std::size_t i = 0; i < count_; ++i) {
    const auto key = static_cast<Key>(nodes_[i]);
    std::size_t at = home(key, table.shift);
    while (table.slots[at].stamp >= base_) at = (at + 1) & mask;
    table.slots[at] = {key, base_ + static_cast<std::uint32_t>(i)};
  }
}

void NodeIndex::clear() {
  base_ += static_cast<std::uint32_t>(count_);
  count_ = 0;
}

template void NodeIndex::insert(std::span<const std::int32_t>, std::int32_t*);
template void NodeIndex::insert(std::span<const std::int64_t>, std::int32_t*);

}  // namespace khop
