#include "dispatch.h"

#include <atomic>

namespace khop {
namespace {

bool has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0;
#else
  return false;
#endif
}

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
#else
  return false;
#endif
}

std::atomic<Level>& current_level() {
  static std::atomic<Level> level = has_avx512() ? Level::avx512 : has_avx2() ? Level::avx2 : Level::plain;
  return level;
}

}  // namespace

std::span<const LevelInfo> dispatch_levels() {
  static const LevelInfo levels[] = {{"plain", true}, {"avx2", has_avx2()}, {"avx512", has_avx512()}};
  return levels;
}

Level dispatch_level() { return current_level().load(std::memory_order_relaxed); }

bool set_dispatch_level(std::string_view name) {
  const auto levels = dispatch_levels();
  for (std::size_t level = 0; level < levels.size(); ++level) {
    if (levels[level].name == name && levels[level].supported) {
      current_level().store(static_cast<Level>(level), std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace khop
