// Tables from node ids to local ids, for node_index.h.
//
// A slot holds a stamp = base + local id. Raising the base above every stamp in use empties all slots at once: a slot below the
// base counts as empty. Stamps have 32 bits; who hands out the base refills the table before they run out.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "memory.h"

namespace khop {

inline constexpr std::size_t kPrefetchAhead = 64;  // ids between a slot's prefetch and its use

// One slot per node of the graph.
class DenseSlots {
 public:
  using Key = std::uint32_t;

  explicit DenseSlots(std::size_t num_nodes) : stamps_(num_nodes) {}

  // Gives ids their local ids, new ones from `count` on, and appends these to `nodes`, which has room for one more than will
  // be in use. Returns the new count.
  template <class Id>
  std::size_t insert(std::span<const Id> ids, std::uint32_t base, std::size_t count, Key* nodes, std::int32_t* local) {
    std::uint32_t* const stamps = stamps_.data();
    std::uint32_t next = base + static_cast<std::uint32_t>(count);
    const auto insert_one = [&](std::size_t i) {
      const auto node = static_cast<std::size_t>(ids[i]);
      // No branch on "seen before": it is a coin toss, and a wrong guess costs more than two stores.
      const std::uint32_t stamp = stamps[node];
      const bool is_new = stamp < base;
      const std::uint32_t now = is_new ? next : stamp;
      stamps[node] = now;
      nodes[next - base] = static_cast<Key>(node);
      local[i] = static_cast<std::int32_t>(now - base);
      next += is_new;
    };
    const std::size_t ahead = ids.size() > kPrefetchAhead ? ids.size() - kPrefetchAhead : 0;
    for (std::size_t i = 0; i < ahead; ++i) {
      __builtin_prefetch(stamps + ids[i + kPrefetchAhead], 1);
      insert_one(i);
    }
    for (std::size_t i = ahead; i < ids.size(); ++i) insert_one(i);
    return next - base;
  }

  // The local ids of ids; -1 of those that have none.
  template <class Id>
  void find(std::span<const Id> ids, std::uint32_t base, std::int32_t* local) const {
    const std::uint32_t* const stamps = stamps_.data();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + kPrefetchAhead < ids.size()) __builtin_prefetch(stamps + ids[i + kPrefetchAhead]);
      const std::uint32_t stamp = stamps[static_cast<std::size_t>(ids[i])];
      local[i] = stamp < base ? -1 : static_cast<std::int32_t>(stamp - base);
    }
  }

  // Empties the table, then stamps `nodes` from `base` on.
  void refill(std::span<const Key> nodes, std::uint32_t base) {
    stamps_ = ZeroedArray<std::uint32_t>(stamps_.size());
    for (const Key node : nodes) stamps_[node] = base++;
  }

 private:
  ZeroedArray<std::uint32_t> stamps_;
};

// Open addressing with linear probing, at most half full; grows with the batch, whatever the graph's size.
template <class NodeKey>
class HashSlots {
 public:
  using Key = NodeKey;

  explicit HashSlots(std::size_t /*num_nodes*/) : slots_(4 * kBlock) {}

  // As DenseSlots::insert.
  template <class Id>
  std::size_t insert(std::span<const Id> ids, std::uint32_t base, std::size_t count, Key* nodes, std::int32_t* local) {
    for (std::size_t first = 0; first < ids.size(); first += kBlock) {
      if (2 * (count + kBlock) > slots_.size()) {
        slots_ = ZeroedArray<Slot>(2 * slots_.size());
        fill({nodes, count}, base);
      }
      const Probe probe(slots_, base);
      const std::size_t last = std::min(first + kBlock, ids.size());
      for (std::size_t i = first; i < last; ++i) {
        if (i + kPrefetchAhead < ids.size()) {
          __builtin_prefetch(probe.slots + probe.home(static_cast<Key>(ids[i + kPrefetchAhead])), 1);
        }
        const auto key = static_cast<Key>(ids[i]);
        Slot& slot = probe.find(key);
        const bool is_new = slot.stamp < base;  // no branch, as in DenseSlots
        const std::uint32_t now = is_new ? base + static_cast<std::uint32_t>(count) : slot.stamp;
        slot = {key, now};
        nodes[count] = key;
        count += is_new;
        local[i] = static_cast<std::int32_t>(now - base);
      }
    }
    return count;
  }

  // As DenseSlots::find.
  template <class Id>
  void find(std::span<const Id> ids, std::uint32_t base, std::int32_t* local) const {
    const std::size_t mask = slots_.size() - 1;
    const int shift = 64 - std::countr_zero(slots_.size());
    const auto home = [&](Id id) { return static_cast<std::size_t>((std::uint64_t(static_cast<Key>(id)) * kGolden) >> shift); };
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + kPrefetchAhead < ids.size()) __builtin_prefetch(slots_.data() + home(ids[i + kPrefetchAhead]));
      const auto key = static_cast<Key>(ids[i]);
      std::size_t at = home(ids[i]);
      while (slots_[at].stamp >= base && slots_[at].key != key) at = (at + 1) & mask;
      local[i] = slots_[at].stamp < base ? -1 : static_cast<std::int32_t>(slots_[at].stamp - base);
    }
  }

  // As DenseSlots::refill.
  void refill(std::span<const Key> nodes, std::uint32_t base) {
    slots_ = ZeroedArray<Slot>(slots_.size());
    fill(nodes, base);
  }

 private:
  static constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
  static constexpr std::size_t kBlock = 256;  // ids inserted between two looks at how full the table is

  struct Slot {
    Key key;
    std::uint32_t stamp;
  };

  struct Probe {
    Probe(ZeroedArray<Slot>& table, std::uint32_t lowest)
        : slots(table.data()), mask(table.size() - 1), shift(64 - std::countr_zero(table.size())), base(lowest) {}

    // Fibonacci hashing (Knuth, TAOCP 3, 6.4): the high bits of the product are well mixed even for consecutive ids.
    std::size_t home(Key key) const {
      return static_cast<std::size_t>((std::uint64_t{key} * kGolden) >> shift);
    }

    // The slot that holds `key`, or the empty one where it belongs.
    Slot& find(Key key) const {
      std::size_t at = home(key);
      while (slots[at].stamp >= base && slots[at].key != key) at = (at + 1) & mask;
      return slots[at];
    }

    Slot* slots;
    std::size_t mask;
    int shift;
    std::uint32_t base;
  };

  void fill(std::span<const Key> nodes, std::uint32_t base) {
    const Probe probe(slots_, base);
    std::uint32_t stamp = base;
    for (const Key node : nodes) probe.find(node) = {node, stamp++};
  }

  ZeroedArray<Slot> slots_;
};

}  // namespace khop
