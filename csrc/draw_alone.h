// The draws of one row, for rows that draw_rows.h does not support: many slots, or a degree of at least 2^20.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "random.h"

namespace khop {

// The picked positions of a row: open addressing; a slot has position + 1, or 0 if it is empty.
class PickSet {
 public:
  // Removes all positions, and makes room for new ones.
  void reset(std::size_t picks) {
    slots_.assign(std::bit_ceil(2 * picks + 1), 0);
    shift_ = 64 - std::countr_zero(slots_.size());
  }

  // Returns false if the position is already there.
  bool insert(std::uint64_t pick) {
    std::size_t at = static_cast<std::size_t>((pick * 0x9E3779B97F4A7C15) >> shift_);
    for (; slots_[at] != 0; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == pick + 1) return false;
    }
    slots_[at] = pick + 1;
    return true;
  }

 private:
  std::vector<std::uint64_t> slots_;
  int shift_ = 0;
};

// Floyd's picks of `fanout` from a row with more entries, in draw order; `taken` is scratch.
inline void draw_distinct_alone(RowWords words, std::uint64_t degree, std::size_t fanout, PickSet& taken,
                                std::vector<std::uint64_t>& picks) {
  taken.reset(fanout);
  picks.clear();
  for (std::uint64_t last = degree - fanout; last < degree; ++last) {
    std::uint64_t pick = words.below(last + 1, degree);
    if (!taken.insert(pick)) {
      pick = last;
      taken.insert(pick);
    }
    picks.push_back(pick);
  }
}

// `fanout` picks with replacement from a row with at least one entry.
inline void draw_repeated_alone(RowWords words, std::uint64_t degree, std::size_t fanout, std::vector<std::uint64_t>& picks) {
  picks.clear();
  for (std::size_t slot = 0; slot < fanout; ++slot) picks.push_back(words.below(degree, degree));
}

}  // namespace khop
