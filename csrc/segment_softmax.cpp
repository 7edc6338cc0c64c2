#include "segment_softmax.h"

#include "number.h"
#include "parallel.h"
#include "segment_rows.h"
#include "simd.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numbers>
#include <type_traits>
#include <vector>

#pragma GCC diagnostic ignored "-Wpsabi"  // see number.h

namespace khop {
namespace {

// Constants of exp in A: adding 1.5 * 2^mantissa rounds the exponent and leaves it in the low bits.
template <class A>
struct ExpOf;
template <>
struct ExpOf<float> {
  using Bits = std::uint32_t;
  static constexpr int mantissa = 23, terms = 7;
  static constexpr float lowest = -87, ln2_high = 0x1.62e4p-1F, ln2_low = 0x1.7f7d1cp-20F;
};
template <>
struct ExpOf<double> {
  using Bits = std::uint64_t;
  static constexpr int mantissa = 52, terms = 13;
  static constexpr double lowest = -708, ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;
};

// exp of nonpositive values, to 2 ulp; 0 if the result would be subnormal; NaN stays NaN.
// x = n ln 2 + r with |r| <= ln(2) / 2: 2^n by its bits, exp(r) by its Taylor series.
template <class A, int bytes>
KHOP_INLINE Lanes<A, bytes> exp_negative(const Lanes<A, bytes>& x) {
  using E = ExpOf<A>;
  using Value = Lanes<A, bytes>;
  using Bits = Lanes<typename E::Bits, bytes>;
  constexpr A round = A{3} * (std::int64_t{1} << (E::mantissa - 1));
  const Value shifted = x * std::numbers::log2e_v<A> + round;
  const Value n = shifted - round;
  const Value r = (x - n * E::ln2_high) - n * E::ln2_low;
  Value series = Value{} + 1;
  for (int k = E::terms; k > 0; --k) series = series * r * (A{1} / static_cast<A>(k)) + 1;
  const Value power = std::bit_cast<Value>((std::bit_cast<Bits>(shifted) << E::mantissa) + std::bit_cast<Bits>(Value{} + 1));
  return x < E::lowest ? Value{} : series * power;
}

constexpr std::int64_t kWidest = 64;  // bytes of a register

constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

template <class T, int bytes>
struct SoftmaxOf {
  using A = Accumulator<T>;
  using G = Group<A, bytes>;
  using One = Single<T>;

  // `row` has room for a row's numbers, rounded up to whole groups; `heads_room` for two numbers a head.
  static KHOP_INLINE void run(const T* scores, std::int64_t heads, const std::int64_t* indptr, T* out, std::int64_t begin,
                              std::int64_t end, A* row, A* heads_room) {
    A* const largest = heads_room;
    A* const sum = heads_room + heads;
    for (; begin < end; ++begin) {
      const T* from = scores + indptr[begin] * heads;
      const std::int64_t degree = indptr[begin + 1] - indptr[begin];
      std::fill_n(largest, heads, -std::numeric_limits<A>::infinity());
      std::fill_n(sum, heads, A{0});
      for (std::int64_t edge = 0; edge < degree; ++edge) {
        for (std::int64_t head = 0; head < heads; ++head) {
          largest[head] = std::max(largest[head], One::load(from + edge * heads + head));
        }
      }
      for (std::int64_t edge = 0; edge < degree; ++edge) {
        for (std::int64_t head = 0; head < heads; ++head) {
          row[edge * heads + head] = One::load(from + edge * heads + head) - largest[head];
        }
      }
      for (std::int64_t at = 0; at < degree * heads; at += G::count) {
        G::store(row + at, exp_negative<A, bytes>(G::load(row + at)));
      }
      for (std::int64_t edge = 0; edge < degree; ++edge) {
        for (std::int64_t head = 0; head < heads; ++head) sum[head] += row[edge * heads + head];
      }
      T* to = out + indptr[begin] * heads;
      for (std::int64_t edge = 0; edge < degree; ++edge) {
        for (std::int64_t head = 0; head < heads; ++head) {
          One::store(to + edge * heads + head, row[edge * heads + head] / sum[head]);
        }
      }
    }
  }
};

template <class T>
struct Softmax {
  template <int bytes>
  using Of = SoftmaxOf<T, bytes>;
};

template <class T>
struct SoftmaxGradient {
  using A = Accumulator<T>;
  using One = Single<T>;

  static KHOP_INLINE void run(const T* result, const T* gradient, std::int64_t heads, const std::int64_t* indptr, T* out,
                              std::int64_t begin, std::int64_t end, A* dot) {
    for (; begin < end; ++begin) {
      std::fill_n(dot, heads, A{0});
      for (std::int64_t edge = indptr[begin]; edge < indptr[begin + 1]; ++edge) {
        for (std::int64_t head = 0; head < heads; ++head) {
          dot[head] += One::load(result + edge * heads + head) * One::load(gradient + edge * heads + head);
        }
      }
      for (std::int64_t edge = indptr[begin]; edge < indptr[begin + 1]; ++edge) {
        for (std::int64_t head = 0; head < heads; ++head) {
          const std::int64_t at = edge * heads + head;
          One::store(out + at, One::load(result + at) * (One::load(gradient + at) - dot[head]));
        }
      }
    }
  }
};

// fn(first row, last row) for every part.
template <class T, class Fn>
void split_rows(std::span<const std::int64_t> indptr, std::int64_t heads, int threads, Fn&& fn) {
  const int parts = spare_parts(threads, indptr.back() * heads * static_cast<std::int64_t>(sizeof(T)), kPartBytes / 4);
  parallel_parts(threads, parts, [&](int part) { fn(first_row(indptr, part, parts), first_row(indptr, part + 1, parts)); });
}

}  // namespace

template <class T>
void segment_softmax(const T* scores, std::int64_t heads, std::span<const std::int64_t> indptr, T* out, int threads) {
  using A = Accumulator<T>;
  split_rows<T>(indptr, heads, threads, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t longest = 0;
    for (std::int64_t row = begin; row < end; ++row) longest = std::max(longest, indptr[row + 1] - indptr[row]);
    std::vector<A> row(round_up(longest * heads, kWidest / sizeof(A))), heads_room(2 * heads);
    run_widest<Softmax<T>::template Of>(scores, heads, indptr.data(), out, begin, end, row.data(), heads_room.data());
  });
}

template <class T>
void segment_softmax_gradient(const T* result, const T* gradient, std::int64_t heads, std::span<const std::int64_t> indptr,
                              T* out, int threads) {
  split_rows<T>(indptr, heads, threads, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Accumulator<T>> dot(heads);
    run_widest<SoftmaxGradient<T>>(result, gradient, heads, indptr.data(), out, begin, end, dot.data());
  });
}

#define KHOP_SOFTMAX(T)                                                                                         \
  template void segment_softmax(const T*, std::int64_t, std::span<const std::int64_t>, T*, int);                \
  template void segment_softmax_gradient(const T*, const T*, std::int64_t, std::span<const std::int64_t>, T*, int);
KHOP_SOFTMAX(float)
KHOP_SOFTMAX(double)
KHOP_SOFTMAX(BFloat16)
KHOP_SOFTMAX(Float16)
#undef KHOP_SOFTMAX

}  // namespace khop
