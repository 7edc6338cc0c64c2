// The 16-bit floats that C++20 lacks, as bits, and how they become float32 and back.
#pragma once

#include "simd.h"

#include <bit>
#include <cstdint>

namespace khop {

struct BFloat16 {
  std::uint16_t bits;
};

struct Float16 {
  std::uint16_t bits;
};

// What a type is summed in.
template <class T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<BFloat16> {
  using type = float;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

template <class T>
KHOP_INLINE T widen(T value) {
  return value;
}
KHOP_INLINE float widen(BFloat16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

template <class T>
KHOP_INLINE T narrow(Accumulator<T> value) {
  return value;
}
// Round to nearest, ties to even; a NaN stays one.
template <>
KHOP_INLINE BFloat16 narrow<BFloat16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return {static_cast<std::uint16_t>(value == value ? rounded : (bits >> 16) | 0x40)};
}

}  // namespace khop
