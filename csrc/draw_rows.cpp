#include "draw_rows.h"

#include "dispatch.h"
#include "draw_rows_lanes.h"
#include "draw_rows_levels.h"

namespace khop {
namespace {

// One row at a time, in plain C++, for every machine.
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

constexpr DrawFunctions kDrawFunctionsPlain{&draw_distinct<PlainLanes>, &draw_repeated<PlainLanes>, &draw_words<PlainLanes>};

}  // namespace

const DrawFunctions& draw_functions() {
#if defined(__x86_64__)
  switch (dispatch_level()) {
    case Level::avx512:
      return kDrawFunctionsAvx512;
    case Level::avx2:
      return kDrawFunctionsAvx2;
    case Level::plain:
      break;
  }
#endif
  return kDrawFunctionsPlain;
}

}  // namespace khop
