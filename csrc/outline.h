// Nondecreasing values within rows, with an outline of two bytes per value for fast search.
//
// The outline of row r, whose entries begin at `begin`, starts at position begin + kOutlineHead * r: its first and last value, then a
// code for each entry. A code is the difference from the row's first value, reduced to the upper 16 of the bits that the row needs,
// minus 2^15, so that codes compare as signed numbers. Unequal codes order their values; for equal codes, the values decide.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "search.h"
#include "simd.h"

namespace khop {

inline constexpr std::int64_t kOutlineHead = 8;     // two values, in codes
inline constexpr std::int64_t kOutlineWindow = 32;  // codes that are compared together: a cache line

struct Rising {
  std::span<const std::int64_t> values;   // one per edge
  std::span<const std::int16_t> outline;  // outline_size of them
};

// Rounded up to whole windows. Throws std::invalid_argument for invalid numbers.
std::int64_t outline_size(std::int64_t edges, std::int64_t rows);

// Writes all outline_size entries. Throws DamagedArray unless indptr splits the values into rows.
void make_outline(std::span<const std::int64_t> indptr, std::span<const std::int64_t> values, std::int16_t* outline, int threads);

// Throws std::invalid_argument unless the numbers of values and codes fit the numbers of edges and rows.
void check_rising(const Rising& rising, std::int64_t edges, std::int64_t rows, const char* name);

// The head of a row's outline.
struct OutlinedRow {
  std::int64_t first, last;
  std::int64_t skip;  // from an entry to its code
  int shift;          // bits that codes drop

  std::int16_t code_of(std::int64_t value) const {
    const std::uint64_t above = static_cast<std::uint64_t>(value) - static_cast<std::uint64_t>(first);
    return static_cast<std::int16_t>(static_cast<std::int64_t>(above >> shift) + std::numeric_limits<std::int16_t>::min());
  }
};

KHOP_INLINE OutlinedRow outlined(std::int64_t first, std::int64_t last, std::int64_t row) {
  const std::uint64_t span = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first);
  const int bits = static_cast<int>(std::bit_width(span));
  return {first, last, kOutlineHead * (row + 1), bits > 16 ? bits - 16 : 0};
}

// The head of a row with entries.
KHOP_INLINE OutlinedRow outlined_row(const std::int16_t* outline, std::int64_t row, std::int64_t begin) {
  std::int64_t ends[2];
  std::memcpy(ends, outline + begin + kOutlineHead * row, sizeof ends);
  return outlined(ends[0], ends[1], row);
}

KHOP_INLINE void prefetch_outline(const std::int16_t* outline, std::int64_t row, std::int64_t begin) {
  const std::int16_t* const head = outline + begin + kOutlineHead * row;
  __builtin_prefetch(head);
  __builtin_prefetch(head + kOutlineHead - 1);
}

// Bit i is set if code i of a window is below `code`.
KHOP_INLINE std::uint32_t codes_below(const std::int16_t* window, std::int16_t code) {
#if defined(__SSE2__)
  const auto* const from = reinterpret_cast<const __m128i*>(window);
  const __m128i bound = _mm_set1_epi16(code);
  const auto below = [&](int part) { return _mm_cmplt_epi16(_mm_loadu_si128(from + part), bound); };
  const auto low = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(below(0), below(1))));
  const auto high = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(below(2), below(3))));
  return low | high << 16;
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < kOutlineWindow; ++i) bits |= static_cast<std::uint32_t>(window[i] < code) << i;
  return bits;
#endif
}

// Interleaves many searches, to overlap their memory latency.
class RisingSearches {
 public:
  RisingSearches(const Rising& rising, std::size_t most)
      : values_(rising.values.data()), outline_(rising.outline.data()), searches_(most) {}

  // Allocates memory for `most` searches at a time, while none is open.
  void resize(std::size_t most) { searches_.resize(most); }

  bool is_full() const { return count_ == searches_.size(); }

  // Starts search number `slot` for the first entry in [begin, end) with a value above `bound`, in a row whose entries before `begin`
  // are not above it and whose last entry is. Begins near `guess`, an entry in [begin, end). Calls found(slot, entry) if no search is
  // needed.
  template <class Found>
  KHOP_INLINE void begin(std::int64_t slot, const OutlinedRow& row, std::int64_t begin, std::int64_t end, std::int64_t guess,
                         std::int64_t bound, const Found& found) {
    if (bound < row.first || end - begin <= 1) {
      found(slot, begin);
      return;
    }
    Search& search = searches_[count_++];
    search.low = begin + row.skip;
    search.high = end - 1 + row.skip;
    search.window = std::min(guess + row.skip, search.high - 1) / kOutlineWindow;
    search.skip = row.skip;
    search.end = end;
    search.bound = bound;
    search.slot = slot;
    search.exact = row.shift == 0;
    // Codes that drop no bits are values: the first one above the bound is the first that is at least bound + 1.
    search.code = static_cast<std::int16_t>(row.code_of(bound) + (search.exact ? 1 : 0));
    search.looked = false;
    prefetch(search);
  }

  // Completes all searches, and calls found(slot, entry) for each.
  template <class Found>
  KHOP_INLINE void finish(const Found& found) {
    while (count_ > 0) {
      std::size_t open = 0;
      for (std::size_t at = 0; at < count_; ++at) {
        Search& search = searches_[at];
        if (!look(search)) {
          prefetch(search);
          if (open != at) searches_[open] = search;
          ++open;
          continue;
        }
        const std::int64_t entry = search.low - search.skip;
        if (search.exact || outline_[search.low] != search.code) {
          found(search.slot, entry);
          continue;
        }
        __builtin_prefetch(values_ + entry);
        doubts_.push_back({entry, search.end, search.bound, search.slot});
      }
      count_ = open;
    }
    for (const Doubt& doubt : doubts_) {
      found(doubt.slot, first_above(values_, doubt.entry, doubt.end, doubt.entry, doubt.bound));
    }
    doubts_.clear();
  }

 private:
  struct Search {
    std::int64_t low, high;  // the answer's code is in [low, high]
    std::int64_t window;
    std::int64_t skip, end;
    std::int64_t bound;
    std::int64_t slot;
    std::int16_t code;  // the first code that is not below it is the answer's, or equal
    bool exact;
    bool looked;  // a first window was searched without success
  };
  struct Doubt {
    std::int64_t entry, end, bound;
    std::int64_t slot;
  };

  KHOP_INLINE void prefetch(const Search& search) const { __builtin_prefetch(outline_ + search.window * kOutlineWindow); }

  // Narrows a search by a window; returns false, with the next window, if several entries remain.
  KHOP_INLINE bool look(Search& search) const {
    const std::int64_t start = search.window * kOutlineWindow;
    const std::int64_t left = std::max(search.low, start), right = std::min(search.high, start + kOutlineWindow);
    const std::uint32_t all = ~std::uint32_t{0};
    const std::uint32_t there = (all << (left - start)) & (all >> (start + kOutlineWindow - right));
    const std::int64_t below = std::popcount(codes_below(outline_ + start, search.code) & there);
    const bool first = left == search.low, inside = below < right - left;
    search.low = first || below > 0 ? left + below : search.low;
    search.high = inside ? left + below : search.high;
    if (search.low >= search.high) return true;
    const std::int64_t next = inside ? search.high - 1 : search.low;
    search.window = (search.looked ? search.low + (search.high - search.low) / 2 : next) / kOutlineWindow;
    search.looked = true;
    return false;
  }

  const std::int64_t* values_;
  const std::int16_t* outline_;
  std::vector<Search> searches_;
  std::size_t count_ = 0;
  std::vector<Doubt> doubts_;
};

}  // namespace khop
