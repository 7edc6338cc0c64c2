// One source, compiled for several instruction sets; the widest that the machine has is chosen at run time.
#pragma once

#include "dispatch.h"

#define KHOP_INLINE inline __attribute__((always_inline))

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

// Kernel::run must be KHOP_INLINE, and so must all that it calls in its loops: only what is inlined is compiled anew.
// Lanes are independent and products are not fused (-ffp-contract=off), so that every instruction set gives the same bits.
// A function of its own: inlined into a large caller, the loop would lack registers.
template <class Kernel, class... Args>
[[gnu::noinline]] void run_widest(Args... args) {
#if defined(__x86_64__) && defined(__GNUC__)
  switch (dispatch_level()) {
    case Level::avx512:
      return run_avx512<Kernel>(args...);
    case Level::avx2:
      return run_avx2<Kernel>(args...);
    case Level::plain:
      break;
  }
#endif
  Kernel::run(args...);
}

}  // namespace khop
