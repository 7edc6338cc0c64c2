// Element types, one value at a time or in groups: how they are read, what they are summed in, how they are written.
#pragma once

#include "simd.h"

#include <bit>
#include <cstdint>
#include <cstring>

// Groups are passed to inlined functions alone, never from one instruction set to another.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace khop {

// The 16-bit float that C++20 lacks, as bits: the upper half of a float32.
struct BFloat16 {
  std::uint16_t bits;
};

template <class T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<BFloat16> {
  using type = float;
};
// What a T is computed in.
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

// The upper halves of float32 bits, rounded to nearest, ties to even.
template <class Bits>
KHOP_INLINE Bits rounded_half(const Bits& bits) {
  return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

// One value at a time.
template <class T>
struct Single {
  static constexpr std::int64_t count = 1;
  using Value = T;

  static KHOP_INLINE Value load(const T* from) { return *from; }
  static KHOP_INLINE void store(T* to, Value value) { *to = value; }
};

template <>
struct Single<BFloat16> {
  static constexpr std::int64_t count = 1;
  using Value = float;

  static KHOP_INLINE Value load(const BFloat16* from) { return std::bit_cast<float>(std::uint32_t{from->bits} << 16); }
  static KHOP_INLINE void store(BFloat16* to, Value value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    to->bits = static_cast<std::uint16_t>(value == value ? rounded_half(bits) : (bits >> 16) | 0x40);  // a NaN stays one
  }
};

// 64 bytes of accumulators at a time: one register of AVX-512, two of AVX2, four of SSE or NEON. The alignment is named because
// GCC takes another one by default where it compiles for fewer instructions, and the two meet here.
template <class T>
struct Group {
  static constexpr std::int64_t count = 64 / sizeof(T);
  typedef T Value __attribute__((vector_size(64), aligned(64)));

  static KHOP_INLINE Value load(const T* from) {
    Value value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static KHOP_INLINE void store(T* to, const Value& value) { std::memcpy(to, &value, sizeof value); }
};

template <>
struct Group<BFloat16> {
  static constexpr std::int64_t count = 16;
  typedef float Value __attribute__((vector_size(64), aligned(64)));
  typedef std::uint32_t Words __attribute__((vector_size(64), aligned(64)));
  typedef std::uint16_t Halves __attribute__((vector_size(32), aligned(32)));

  static KHOP_INLINE Value load(const BFloat16* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return std::bit_cast<Value>(__builtin_convertvector(halves, Words) << 16);
  }
  static KHOP_INLINE void store(BFloat16* to, const Value& value) {
    const auto bits = std::bit_cast<Words>(value);
    const Words halves = value == value ? rounded_half(bits) : (bits >> 16) | 0x40;
    const Halves narrow = __builtin_convertvector(halves, Halves);
    std::memcpy(to, &narrow, sizeof narrow);
  }
};

}  // namespace khop

#pragma GCC diagnostic pop
