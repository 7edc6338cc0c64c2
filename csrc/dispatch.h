// Which instructions the kernels use. The choice changes how fast they are, never a bit of what they give.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace khop {

enum class Level : std::size_t { plain, avx2, avx512 };

// By the value of Level. Where the machine or the build lacks one, `supported` is false.
struct LevelInfo {
  std::string_view name;
  bool supported;
};
std::span<const LevelInfo> dispatch_levels();

// The widest that the machine has, until set_dispatch_level says otherwise, for all threads.
Level dispatch_level();

// False, and nothing changes, for a name that is not a supported level.
bool set_dispatch_level(std::string_view name);

}  // namespace khop
