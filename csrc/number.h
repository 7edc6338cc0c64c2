// Element types, one value at a time or in groups: how they are read, what they are summed in, how they are written.
#pragma once

#include "simd.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

// Groups are passed to inlined functions alone, never from one instruction set to another.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace khop {

// The 16-bit floats that C++20 lacks, as bits. A BFloat16 is the upper half of a float32.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

// What a T is computed in.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

// The upper halves of float32 bits, rounded to nearest, ties to even.
template <class Bits>
KHOP_INLINE Bits rounded_half(const Bits& bits) {
  return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

// The float32 bits of a float16's bits, exactly. Subnormal halves are normal floats: 2^-14 is added and taken away again.
template <class Float, class Bits>
KHOP_INLINE Bits widened_half(const Bits& half) {
  constexpr std::uint32_t rebias = (127 - 15) << 23, smallest = (127 - 14) << 23;
  const Bits exponent = half & 0x7C00;
  const Bits magnitude = (half & 0x7FFF) << 13;
  const Bits base = Bits{} + smallest;
  const auto subnormal = std::bit_cast<Float>(magnitude + base) - std::bit_cast<Float>(base);
  const Bits special = exponent == 0x7C00 ? magnitude + 2 * rebias : magnitude + rebias;  // infinity and NaN keep theirs
  return (exponent == 0 ? std::bit_cast<Bits>(subnormal) : special) | (half & 0x8000) << 16;
}

// The bits of the float16 next to a float32, given by its bits, ties to even. The float addition rounds subnormal halves.
template <class Float, class Bits>
KHOP_INLINE Bits narrowed_half(const Bits& single) {
  constexpr std::uint32_t rebias = (127 - 15) << 23, smallest = (127 - 14) << 23, too_large = (127 + 16) << 23;
  constexpr std::uint32_t infinite = 0xFF << 23, one_bit = (127 - 15 + 23 - 10 + 1) << 23;
  const Bits magnitude = single & 0x7FFFFFFF;
  const Bits base = Bits{} + one_bit;
  const Bits subnormal = std::bit_cast<Bits>(std::bit_cast<Float>(magnitude) + std::bit_cast<Float>(base)) - base;
  const Bits normal = (magnitude - rebias + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
  const Bits finite = magnitude < smallest ? subnormal : normal;
  const Bits special = magnitude > infinite ? Bits{} + 0x7E00 : Bits{} + 0x7C00;  // a NaN stays one
  return (magnitude >= too_large ? special : finite) | ((single >> 16) & 0x8000);
}

// One value at a time.
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
    const auto bits = std::bit_cast<std::uint32_t>(value);
    to->bits = static_cast<std::uint16_t>(value == value ? rounded_half(bits) : (bits >> 16) | 0x40);  // a NaN stays one
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

// 64 bytes of accumulators at a time: one register of AVX-512, two of AVX2, four of SSE or NEON. The alignment is named
// because GCC takes another one by default where it compiles for fewer instructions, and the two meet here.
typedef float Floats __attribute__((vector_size(64), aligned(64)));
typedef double Doubles __attribute__((vector_size(64), aligned(64)));
typedef std::uint32_t Words __attribute__((vector_size(64), aligned(64)));
typedef std::uint16_t Halves __attribute__((vector_size(32), aligned(32)));

// Memory that need not be aligned, as a group.
template <class Lanes, class T>
KHOP_INLINE Lanes load_lanes(const T* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

template <class T>
struct Group;

template <>
struct Group<float> {
  static constexpr std::int64_t count = 16;
  using Value = Floats;

  static KHOP_INLINE Value load(const float* from) { return load_lanes<Floats>(from); }
  static KHOP_INLINE void store(float* to, const Value& value) { std::memcpy(to, &value, sizeof value); }
};

template <>
struct Group<double> {
  static constexpr std::int64_t count = 8;
  using Value = Doubles;

  static KHOP_INLINE Value load(const double* from) { return load_lanes<Doubles>(from); }
  static KHOP_INLINE void store(double* to, const Value& value) { std::memcpy(to, &value, sizeof value); }
};

template <>
struct Group<BFloat16> {
  static constexpr std::int64_t count = 16;
  using Value = Floats;

  static KHOP_INLINE Value load(const BFloat16* from) {
    return std::bit_cast<Floats>(__builtin_convertvector(load_lanes<Halves>(from), Words) << 16);
  }
  static KHOP_INLINE void store(BFloat16* to, const Value& value) {
    const auto bits = std::bit_cast<Words>(value);
    const Words halves = value == value ? rounded_half(bits) : (bits >> 16) | 0x40;  // a NaN stays one
    const Halves narrow = __builtin_convertvector(halves, Halves);
    std::memcpy(to, &narrow, sizeof narrow);
  }
};

template <>
struct Group<Float16> {
  static constexpr std::int64_t count = 16;
  using Value = Floats;

  static KHOP_INLINE Value load(const Float16* from) {
    return std::bit_cast<Floats>(widened_half<Floats>(__builtin_convertvector(load_lanes<Halves>(from), Words)));
  }
  static KHOP_INLINE void store(Float16* to, const Value& value) {
    const Words halves = narrowed_half<Floats>(std::bit_cast<Words>(value));
    const Halves narrow = __builtin_convertvector(halves, Halves);
    std::memcpy(to, &narrow, sizeof narrow);
  }
};

// Bytes are only read.
template <class T>
struct GroupOfBytes {
  static constexpr std::int64_t count = 16;
  using Value = Floats;
  typedef T Bytes __attribute__((vector_size(16), aligned(16)));

  static KHOP_INLINE Value load(const T* from) { return __builtin_convertvector(load_lanes<Bytes>(from), Floats); }
};
template <>
struct Group<std::int8_t> : GroupOfBytes<std::int8_t> {};
template <>
struct Group<std::uint8_t> : GroupOfBytes<std::uint8_t> {};

}  // namespace khop

#pragma GCC diagnostic pop
