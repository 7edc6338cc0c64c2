// Draws for many rows at a time, one row per vector lane; bit-identical on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace khop {

inline constexpr std::size_t kMaxRows = 64;    // a multiple of every lane count
inline constexpr std::size_t kMaxFanout = 64;  // rows with more slots are drawn one by one

// Rows of one chunk that need draws, each with a degree below kWideDegree. Entries after `count` are ignored.
struct DrawRows {
  std::size_t count = 0;
  alignas(64) std::uint32_t key_low[kMaxRows] = {};
  alignas(64) std::uint32_t key_high[kMaxRows] = {};
  alignas(64) std::uint32_t node_low[kMaxRows] = {};  // of the original id
  alignas(64) std::uint32_t node_high[kMaxRows] = {};
  alignas(64) std::uint32_t degree[kMaxRows] = {};
};

// Writes the position in the row that a slot draws to picks[slot * kMaxRows + row]; fanout <= kMaxFanout; `picks` is aligned to 64
// bytes.
using DrawFunction = void (*)(const DrawRows& rows, std::size_t fanout, std::uint32_t stream, std::uint32_t* picks);

struct DrawFunctions {
  DrawFunction distinct;  // Floyd, every degree > fanout
  DrawFunction repeated;  // with replacement, every degree > 0
  DrawFunction words;     // the random words: word number `slot` of each row
};

// The functions of the current dispatch level.
const DrawFunctions& draw_functions();

}  // namespace khop
