// Element types, single values or groups: reading, accumulation, writing.
#pragma once

#include "simd.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

// Groups are passed only to inlined functions, never between instruction sets.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace khop {

// 16-bit floats, which C++20 lacks, as bits. A BFloat16 is the upper half of a float32.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

// The type in which T is computed.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

// All bits set in lanes with a < b; both are below 2^31. The comparison is arithmetic, because GCC compares AVX-512 lanes one by
// one in code parsed for a narrower instruction set.
template <class Bits>
KHOP_INLINE Bits mask_below(const Bits& a, const Bits& b) {
  return -((a - b) >> 31);
}

// Bits of a if the mask is set, else of b.
template <class Bits>
KHOP_INLINE Bits choose(const Bits& mask, const Bits& a, const Bits& b) {
  return (a & mask) | (b & ~mask);
}

// The upper halves of float32 bits, rounded to nearest, ties to even. NaN stays NaN.
template <class Bits>
KHOP_INLINE Bits rounded_half(const Bits& bits) {
  const Bits infinite = Bits{} + (0xFF << 23);
  return choose(mask_below(infinite, bits & 0x7FFFFFFF), (bits >> 16) | 0x40, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// The exact float32 bits of float16 bits. Subnormal float16 are normal float32: adds and subtracts 2^-14.
template <class Float, class Bits>
KHOP_INLINE Bits widened_half(const Bits& half) {
  constexpr std::uint32_t rebias = (127 - 15) << 23, smallest = (127 - 14) << 23;
  const Bits exponent = half & 0x7C00, base = Bits{} + smallest, least_normal = Bits{} + 0x0400, largest = Bits{} + 0x7BFF;
  const Bits magnitude = (half & 0x7FFF) << 13;
  const auto subnormal = std::bit_cast<Float>(magnitude + base) - std::bit_cast<Float>(base);
  const Bits normal = magnitude + rebias + (mask_below(largest, exponent) & rebias);  // infinity and NaN keep their exponent
  return choose(mask_below(exponent, least_normal), std::bit_cast<Bits>(subnormal), normal) | (half & 0x8000) << 16;
}

// The bits of the float16 nearest to a float32 given as bits, ties to even. The float addition rounds subnormal results.
template <class Float, class Bits>
KHOP_INLINE Bits narrowed_half(const Bits& single) {
  constexpr std::uint32_t rebias = (127 - 15) << 23;
  const Bits smallest = Bits{} + ((127 - 14) << 23), too_large = Bits{} + ((127 + 16) << 23), infinite = Bits{} + (0xFF << 23);
  const Bits one_bit = Bits{} + ((127 - 15 + 23 - 10 + 1) << 23);
  const Bits magnitude = single & 0x7FFFFFFF;
  const Bits subnormal = std::bit_cast<Bits>(std::bit_cast<Float>(magnitude) + std::bit_cast<Float>(one_bit)) - one_bit;
  const Bits normal = (magnitude - rebias + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
  const Bits finite = choose(mask_below(magnitude, smallest), subnormal, normal);
  const Bits special = 0x7C00 + (mask_below(infinite, magnitude) & 0x0200);  // NaN stays NaN
  return choose(mask_below(magnitude, too_large), finite, special) | ((single >> 16) & 0x8000);
}

// A single value.
template <class T>
struct Single {
  static constexpr std::int64_t count = 1;
  using Value = Accumulator<T>;

  static KHOP_INLINE Value load(const T* from) { return static_cast<Value>(*from); }
  static KHOP_INLINE void store(T* to, Value value) { *to = value; }
};

template <>
struct Single<BFloat16> {
  static constexpr std::int64_t count = 1;
  using Value = float;

  static KHOP_INLINE Value load(const BFloat16* from) { return std::bit_cast<float>(std::uint32_t{from->bits} << 16); }
  static KHOP_INLINE void store(BFloat16* to, Value value) {
    to->bits = static_cast<std::uint16_t>(rounded_half(std::bit_cast<std::uint32_t>(value)));
  }
};

template <>
struct Single<Float16> {
  static constexpr std::int64_t count = 1;
  using Value = float;

  static KHOP_INLINE Value load(const Float16* from) {
    return std::bit_cast<float>(widened_half<float>(std::uint32_t{from->bits}));
  }
  static KHOP_INLINE void store(Float16* to, Value value) {
    to->bits = static_cast<std::uint16_t>(narrowed_half<float>(std::bit_cast<std::uint32_t>(value)));
  }
};

// A register of lanes. The alignment is explicit, because GCC's default depends on the instruction set.
template <class T, int bytes>
struct LanesOf {
  typedef T Type __attribute__((vector_size(bytes), aligned(bytes)));
};
template <class T, int bytes>
using Lanes = typename LanesOf<T, bytes>::Type;

// Unaligned memory as lanes.
template <class Type, class T>
KHOP_INLINE Type load_lanes(const T* from) {
  Type lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

// A register of accumulators.
template <class T, int bytes>
struct Group {
  static constexpr std::int64_t count = bytes / sizeof(T);
  using Value = Lanes<T, bytes>;

  static KHOP_INLINE Value load(const T* from) { return load_lanes<Value>(from); }
  static KHOP_INLINE void store(T* to, const Value& value) { std::memcpy(to, &value, sizeof value); }
};

template <int bytes>
struct Group<BFloat16, bytes> {
  static constexpr std::int64_t count = bytes / sizeof(float);
  using Value = Lanes<float, bytes>;
  using Words = Lanes<std::uint32_t, bytes>;
  using Halves = Lanes<std::uint16_t, bytes / 2>;

  static KHOP_INLINE Value load(const BFloat16* from) {
    return std::bit_cast<Value>(__builtin_convertvector(load_lanes<Halves>(from), Words) << 16);
  }
  static KHOP_INLINE void store(BFloat16* to, const Value& value) {
    const Halves narrow = __builtin_convertvector(rounded_half(std::bit_cast<Words>(value)), Halves);
    std::memcpy(to, &narrow, sizeof narrow);
  }
};

template <int bytes>
struct Group<Float16, bytes> {
  static constexpr std::int64_t count = bytes / sizeof(float);
  using Value = Lanes<float, bytes>;
  using Words = Lanes<std::uint32_t, bytes>;
  using Halves = Lanes<std::uint16_t, bytes / 2>;

  static KHOP_INLINE Value load(const Float16* from) {
    return std::bit_cast<Value>(widened_half<Value>(__builtin_convertvector(load_lanes<Halves>(from), Words)));
  }
  static KHOP_INLINE void store(Float16* to, const Value& value) {
    const Halves narrow = __builtin_convertvector(narrowed_half<Value>(std::bit_cast<Words>(value)), Halves);
    std::memcpy(to, &narrow, sizeof narrow);
  }
};

// Read-only.
template <class T, int bytes>
struct GroupOfBytes {
  static constexpr std::int64_t count = bytes / sizeof(float);
  using Value = Lanes<float, bytes>;

  static KHOP_INLINE Value load(const T* from) {
    const auto wide = __builtin_convertvector(load_lanes<Lanes<T, count>>(from), Lanes<std::int32_t, bytes>);
    return __builtin_convertvector(wide, Value);
  }
};
template <int bytes>
struct Group<std::int8_t, bytes> : GroupOfBytes<std::int8_t, bytes> {};
template <int bytes>
struct Group<std::uint8_t, bytes> : GroupOfBytes<std::uint8_t, bytes> {};

}  // namespace khop

#pragma GCC diagnostic pop
