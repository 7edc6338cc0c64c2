// After R. M. Neal, "Fast exact summation using small and large superaccumulators", 2015.
#include "exact_sum.h"

#include <algorithm>
#include <bit>
#include <type_traits>

namespace khop {
namespace {

__extension__ typedef unsigned __int128 Wide;

void add_one(ExactSums& sums, std::uint64_t mantissa, int shift, bool is_negative, double value) {
  sums.minimum = sums.count == 0 ? value : std::min(sums.minimum, value);
  sums.maximum = sums.count == 0 ? value : std::max(sums.maximum, value);
  ++sums.count;
  sums.sum.add(mantissa, shift, is_negative);
  sums.squares.add(static_cast<Wide>(mantissa) * mantissa, 2 * shift, false);
}

}  // namespace

template <class Number>
std::int64_t add_exactly(ExactSums& sums, std::span<const Number> numbers) {
  for (std::size_t at = 0; at < numbers.size(); ++at) {
    const auto number = numbers[at];
    if constexpr (std::is_integral_v<Number>) {
      const auto wide = static_cast<std::uint64_t>(static_cast<std::int64_t>(number));
      add_one(sums, number < 0 ? -wide : wide, kSumShift, number < 0, static_cast<double>(number));
    } else {
      const auto bits = std::bit_cast<std::uint64_t>(static_cast<double>(number));
      const auto exponent = static_cast<int>(bits >> 52 & 0x7FF);
      const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
      if (exponent == 0x7FF) {
        if (fraction == 0) return static_cast<std::int64_t>(at);
        ++sums.missing;
        continue;
      }
      const std::uint64_t mantissa = exponent == 0 ? fraction : fraction | std::uint64_t{1} << 52;
      add_one(sums, mantissa, std::max(exponent, 1) - 1, bits >> 63 != 0, static_cast<double>(number));
    }
  }
  return -1;
}

template std::int64_t add_exactly(ExactSums&, std::span<const double>);
template std::int64_t add_exactly(ExactSums&, std::span<const float>);
template std::int64_t add_exactly(ExactSums&, std::span<const std::int64_t>);

}  // namespace khop
