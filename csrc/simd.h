// Compiles a kernel for several instruction sets; the widest one of the machine is chosen at run time.
#pragma once

#include "dispatch.h"

#include <type_traits>
#include <utility>

// KHOP_PLAIN_KERNELS compiles one instruction set, which needs no copies: sanitizers' tests compile in half the time.
#if defined(KHOP_PLAIN_KERNELS)
#define KHOP_INLINED
#else
#define KHOP_INLINED __attribute__((always_inline))
#endif
#define KHOP_INLINE inline KHOP_INLINED

namespace khop {

#if defined(__x86_64__) && defined(__GNUC__)
template <class Kernel, class... Args>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))) void run_avx512(Args... args) {
  Kernel::run(args...);
}

template <class Kernel, class... Args>
__attribute__((target("avx2"))) void run_avx2(Args... args) {
  Kernel::run(args...);
}
#endif

// A separate function: inlined into a large caller, the loop would lack registers.
template <class OfAvx512, class OfAvx2, class OfPlain, class... Args>
[[gnu::noinline]] void run_by_level(Args... args) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(KHOP_PLAIN_KERNELS)
  switch (dispatch_level()) {
    case Level::avx512:
      if constexpr (std::is_same_v<OfAvx512, OfAvx2> && !std::is_same_v<OfAvx2, OfPlain>) {
        return run_avx2<OfAvx2>(args...);
      } else {
        return run_avx512<OfAvx512>(args...);
      }
    case Level::avx2:
      return run_avx2<OfAvx2>(args...);
    case Level::plain:
      break;
  }
#endif
  OfPlain::run(args...);
}

// Kernel::run must be KHOP_INLINE, like all functions that it calls in its loops: only inlined code is compiled per level.
// Lanes are independent and products are not fused (-ffp-contract=off), so that every instruction set gives the same bits.
template <class Kernel, class... Args>
void run_widest(Args... args) {
  run_by_level<Kernel, Kernel, Kernel>(args...);
}

// fn(0), fn(1), ..., fn(count - 1), without a loop.
template <int count, class Fn>
KHOP_INLINE void unrolled(Fn&& fn) {
  [&]<int... i>(std::integer_sequence<int, i...>) KHOP_INLINED { (fn(i), ...); }(std::make_integer_sequence<int, count>());
}

// A kernel with the number of bytes of a register as argument, at most `most`. For kernels that compare lanes, use at most 32,
// because GCC compares AVX-512 lanes one by one in code parsed for a narrower instruction set.
template <template <int> class Kernel, int most = 64, class... Args>
void run_widest(Args... args) {
  run_by_level<Kernel<most>, Kernel<32>, Kernel<16>>(args...);
}

}  // namespace khop
