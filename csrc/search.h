// Search in sorted numbers from a good guess.
#pragma once

#include <algorithm>
#include <cstdint>

namespace khop {

// The first position in [begin, end) with a value above `bound`, or end. Values are nondecreasing; `guess` is one of the positions.
// Strides double away from the guess: the cost is logarithmic in its error.
inline std::int64_t first_above(const std::int64_t* values, std::int64_t begin, std::int64_t end, std::int64_t guess,
                                std::int64_t bound) {
  std::int64_t low = begin, high = end;  // the answer is in [low, high]
  if (values[guess] > bound) {
    high = guess;
    std::int64_t probe = guess - 1;
    for (std::int64_t stride = 1; probe >= begin && values[probe] > bound; probe = high - stride) {
      high = probe;
      stride *= 2;
    }
    low = std::max(begin, probe + 1);
  } else {
    low = guess + 1;
    std::int64_t probe = guess + 1;
    for (std::int64_t stride = 1; probe < end && values[probe] <= bound; probe = low + stride - 1) {
      low = probe + 1;
      stride *= 2;
    }
    high = std::min(end, probe);
  }
  return std::upper_bound(values + low, values + high, bound) - values;
}

}  // namespace khop
