// Philox4x32-10, keys, and the reduction of draws to a range.
// docs/randomness.md is the specification.
#pragma once

#include <array>
#include <cstdint>

namespace khop {

using Words = std::array<std::uint32_t, 4>;

// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Also Triton's generator.
inline Words philox(std::uint64_t key, Words counter) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

// SplitMix64's output function (Steele, Lea, Flood 2014): a bijection.
inline std::uint64_t mix64(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

// The key of a disjoint tree, from its seed's position in the epoch's global order.
inline std::uint64_t tree_key(std::uint64_t key, std::uint64_t tree) { return mix64(key ^ mix64(tree)); }

// Rows below this degree use 32-bit draws, others 64-bit draws.
inline constexpr std::uint64_t kWideDegree = std::uint64_t{1} << 20;

// The words of one row in order: w(j) is word j % 4 of counter block j / 4.
class RowWords {
 public:
  RowWords(std::uint64_t key, std::uint64_t node, std::uint32_t stream) : key_(key), node_(node), stream_(stream) {}

  // The next draw of a row with `degree` entries, reduced to [0, range).
  std::uint64_t below(std::uint64_t range, std::uint64_t degree) {
    if (degree < kWideDegree) return (std::uint64_t{next()} * range) >> 32;
    return high_product(wide(), range);
  }

  // Continues with 64-bit draw number `draw` of the row.
  void seek_wide(std::uint64_t draw) {
    position_ = 2 * draw;
    if (position_ % 4 != 0) block_ = block(position_ / 4);
  }

  // The next 64-bit draw.
  std::uint64_t wide() {
    const std::uint64_t low = next();
    return low | (std::uint64_t{next()} << 32);
  }

  // A 64-bit draw reduced to [0, b).
  static std::uint64_t high_product(std::uint64_t a, std::uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((Wide{a} * b) >> 64);
  }

 private:
  std::uint32_t next() {
    if (position_ % 4 == 0) block_ = block(position_ / 4);
    return block_[position_++ % 4];
  }

  Words block(std::uint64_t number) const {
    return philox(key_, {static_cast<std::uint32_t>(node_), static_cast<std::uint32_t>(node_ >> 32), stream_,
                         static_cast<std::uint32_t>(number)});
  }

  std::uint64_t key_;
  std::uint64_t node_;
  std::uint32_t stream_;
  std::uint64_t position_ = 0;
  Words block_{};
};

}  // namespace khop
