// Draws for many rows at a time: one row per vector lane, the same bits on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace khop {

inline constexpr std::size_t kMaxRows = 64;    // a multiple of every lane count
inline constexpr std::size_t kMaxFanout = 64;  // more slots than this are drawn row by row

// Rows of one chunk that need draws, each of a degree below kWideDegree. What lies behind `count` does not matter.
struct DrawRows {
  std::size_t count = 0;
  alignas(64) std::uint32_t key_low[kMaxRows] = {};
  alignas(64) std::uint32_t key_high[kMaxRows] = {};
  alignas(64) std::uint32_t node_low[kMaxRows] = {};  // of the original id
  alignas(64) std::uint32_t node_high[kMaxRows] = {};
  alignas(64) std::uint32_t degree[kMaxRows] = {};
};

// picks[slot * kMaxRows + row] becomes the position within the row that slot draws; fanout <= kMaxFanout; `picks` is aligned
// to 64 bytes.
using DrawFunction = void (*)(const DrawRows& rows, std::size_t fanout, std::uint32_t stream, std::uint32_t* picks);

struct DrawFunctions {
  DrawFunction distinct;  // Floyd, every degree > fanout
  DrawFunction repeated;  // with replacement, every degree > 0
  DrawFunction words;     // what they are made of: word number `slot` of each row
};

// Those of the current dispatch level.
const DrawFunctions& draw_functions();

}  // namespace khop
