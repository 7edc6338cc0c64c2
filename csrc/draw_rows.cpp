#include "draw_rows.h"

#include <atomic>

#include "draw_rows_lanes.h"
#include "draw_rows_levels.h"

namespace khop {
namespace {

// One row at a time, in plain C++: what every machine can do.
struct PlainLanes {
  static constexpr std::size_t kCount = 1;
  using Word = std::uint32_t;
  using Mask = bool;
  struct Product {
    Word low, high;
  };
  static Word load(const std::uint32_t* from) { return *from; }
  static void store(std::uint32_t* to, Word word) { *to = word; }
  static Word broadcast(std::uint32_t value) { return value; }
  static Word add(Word a, Word b) { return a + b; }
  static Word exclusive_or(Word a, Word b) { return a ^ b; }
  static Product multiply(Word a, Word b) {
    const std::uint64_t product = std::uint64_t{a} * b;
    return {static_cast<Word>(product), static_cast<Word>(product >> 32)};
  }
  static Mask none() { return false; }
  static Mask equal(Word a, Word b) { return a == b; }
  static Mask either(Mask a, Mask b) { return a || b; }
  static Word select(Mask mask, Word a, Word b) { return mask ? a : b; }
};

constexpr DrawLevel kLevels[] = {
    {"plain", [] { return true; }, &draw_distinct<PlainLanes>, &draw_repeated<PlainLanes>},
#if defined(__x86_64__)
    {"avx2", [] { return __builtin_cpu_supports("avx2") != 0; }, &draw_distinct_avx2, &draw_repeated_avx2},
    {"avx512", [] { return __builtin_cpu_supports("avx512f") != 0; }, &draw_distinct_avx512, &draw_repeated_avx512},
#endif
};

const DrawLevel* best_level() {
  const DrawLevel* best = &kLevels[0];
  for (const DrawLevel& level : kLevels) {
    if (level.supported()) best = &level;
  }
  return best;
}

std::atomic<const DrawLevel*>& current_level() {
  static std::atomic<const DrawLevel*> level = best_level();
  return level;
}

}  // namespace

std::span<const DrawLevel> draw_levels() { return kLevels; }

const DrawLevel& draw_level() { return *current_level().load(std::memory_order_relaxed); }

bool set_draw_level(std::string_view name) {
  for (const DrawLevel& level : kLevels) {
    if (level.name == name && level.supported()) {
      current_level().store(&level, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace khop
