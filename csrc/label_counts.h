// Counts of a few labels: a hash table whose clearing takes as long as its filling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace khop {

class LabelCounts {
 public:
  void clear() {
    for (const std::size_t slot : used_) slots_[slot].count = 0;
    used_.clear();
  }

  void add(std::uint64_t label) {
    if (2 * (used_.size() + 1) > slots_.size()) grow();
    Slot& slot = slots_[place(label)];
    if (slot.count++ == 0) {
      slot.label = label;
      used_.push_back(static_cast<std::size_t>(&slot - slots_.data()));
    }
  }

  std::int64_t count(std::uint64_t label) const { return slots_.empty() ? 0 : slots_[place(label)].count; }

  // fn(label, count), in arbitrary order.
  template <class Fn>
  void each(Fn&& fn) const {
    for (const std::size_t slot : used_) fn(slots_[slot].label, slots_[slot].count);
  }

 private:
  struct Slot {
    std::uint64_t label = 0;
    std::int64_t count = 0;  // 0: free
  };

  std::size_t place(std::uint64_t label) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = static_cast<std::size_t>((label * 0x9e3779b97f4a7c15ULL) >> 32) & mask;
    while (slots_[slot].count != 0 && slots_[slot].label != label) slot = (slot + 1) & mask;
    return slot;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    old.swap(slots_);
    std::vector<std::size_t> used;
    used.swap(used_);
    for (const std::size_t slot : used) {
      const std::size_t now = place(old[slot].label);
      slots_[now] = old[slot];
      used_.push_back(now);
    }
  }

  std::vector<Slot> slots_;  // a power of two
  std::vector<std::size_t> used_;
};

}  // namespace khop
