// Exact sums of numbers and of their squares, independent of order and grouping.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace khop {

// An integer of 32-bit limbs with room for carries: the sum of limbs[i] * 2^(32 i).
template <std::size_t limbs>
class WideSum {
 public:
  __extension__ typedef unsigned __int128 Wide;

  // Adds or subtracts value * 2^shift.
  void add(Wide value, int shift, bool is_negative) {
    if (++pending_ == kMostPending) carry();
    std::size_t at = static_cast<std::size_t>(shift) / 32;
    const int within = shift % 32;
    const std::uint64_t first = (static_cast<std::uint64_t>(value) << within) & 0xFFFFFFFF;
    Wide rest = value >> (32 - within);
    limbs_[at] += is_negative ? -static_cast<std::int64_t>(first) : static_cast<std::int64_t>(first);
    while (rest != 0) {
      const auto limb = static_cast<std::int64_t>(static_cast<std::uint64_t>(rest) & 0xFFFFFFFF);
      limbs_[++at] += is_negative ? -limb : limb;
      rest >>= 32;
    }
  }

  // Limbs in [0, 2^32), except the last, which has the sign.
  const std::array<std::int64_t, limbs>& carried() {
    carry();
    return limbs_;
  }

 private:
  static constexpr std::int64_t kMostPending = std::int64_t{1} << 30;

  void carry() {
    for (std::size_t at = 0; at + 1 < limbs; ++at) {
      limbs_[at + 1] += limbs_[at] >> 32;
      limbs_[at] &= 0xFFFFFFFF;
    }
    pending_ = 0;
  }

  std::array<std::int64_t, limbs> limbs_{};
  std::int64_t pending_ = 0;
};

inline constexpr int kSumShift = 1074;     // the sum is in units of 2^-1074, the smallest double
inline constexpr int kSquareShift = 2148;  // of squares: 2^-2148

struct ExactSums {
  std::int64_t count = 0, missing = 0;  // missing: NaN
  double minimum = 0, maximum = 0;      // if count > 0
  WideSum<68> sum;                      // 2^1024 / 2^-1074 and 2^63 of them: 2161 bits
  WideSum<136> squares;                 // 4259 bits
};

// Adds all numbers. Returns -1, or the position of the first infinite number, after adding the numbers before it.
template <class Number>
std::int64_t add_exactly(ExactSums& sums, std::span<const Number> numbers);

}  // namespace khop
