// Choice of the kernels' instruction set. It affects their speed, not their results.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace khop {

enum class Level : std::size_t { plain, avx2, avx512 };

// By the value of Level. `supported` is false if the machine or the build lacks it.
struct LevelInfo {
  std::string_view name;
  bool supported;
};
std::span<const LevelInfo> dispatch_levels();

// The level of all threads: the widest of the machine, unless set by set_dispatch_level.
Level dispatch_level();

// Returns false, without effect, for a name that is not a supported level.
bool set_dispatch_level(std::string_view name);

}  // namespace khop
