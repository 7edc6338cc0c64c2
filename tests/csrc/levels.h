// A piece of a test at every dispatch level that the machine has.
#pragma once

#include <string>

#include "dispatch.h"

namespace khop::testing {

template <class Fn>
void at_every_level(const Fn& fn) {
  const std::string before(dispatch_levels()[static_cast<std::size_t>(dispatch_level())].name);
  for (const LevelInfo& level : dispatch_levels()) {
    if (!set_dispatch_level(level.name)) continue;
    fn();
  }
  set_dispatch_level(before);
}

// The same for what only kernels of simd.h compute: KHOP_PLAIN_KERNELS leaves them one level.
template <class Fn>
void at_every_kernel_level(const Fn& fn) {
#if defined(KHOP_PLAIN_KERNELS)
  fn();
#else
  at_every_level(fn);
#endif
}

}  // namespace khop::testing
