// Searching sorted numbers from a good guess.
#pragma once

#include <algorithm>
#include <cstdint>

namespace khop {

// A better guess: as far from `guess` as the value there is from `bound`, at `slope` positions for each unit of value. Floating
// point, because a guess decides nothing but how long the search takes.
inline std::int64_t better_guess(const std::int64_t* values, std::int64_t begin, std::int64_t end, std::int64_t guess,
                                 std::int64_t bound, double slope) {
  const double distance = (static_cast<double>(bound) - static_cast<double>(values[guess])) * slope;
  const double position = static_cast<double>(guess - begin) + distance;
  return begin + static_cast<std::int64_t>(std::clamp(position, 0.0, static_cast<double>(end - 1 - begin)));
}

// The first position of [begin, end) whose value is above `bound`, or end. Values never fall; `guess` is one of the
// positions. Strides double away from the guess: the cost grows with the logarithm of how wrong it is.
inline std::int64_t first_above(const std::int64_t* values, std::int64_t begin, std::int64_t end, std::int64_t guess,
                                std::int64_t bound) {
  std::int64_t low = begin, high = end;  // the answer lies in [low, high]
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
