// The draws of draw_rows.h over a type of vector lanes. Each translation unit that includes this file compiles it for a different
// instruction set, so everything is in an anonymous namespace and does not call functions that the linker could share.
//
// Lanes offers: kCount; Word (kCount 32-bit words); load, store, broadcast, add, exclusive_or; multiply -> {low, high} of the
// 64-bit products; equal -> Mask; none; either; select(mask, a, b) = a where the mask is set.
#pragma once

#include "draw_rows.h"

namespace khop {
namespace {

template <class Lanes>
struct Counter {
  typename Lanes::Word words[4];
};

template <class Lanes>
inline Counter<Lanes> philox_lanes(typename Lanes::Word key_low, typename Lanes::Word key_high, Counter<Lanes> counter) {
  const auto m0 = Lanes::broadcast(0xD2511F53), m1 = Lanes::broadcast(0xCD9E8D57);
  const auto step0 = Lanes::broadcast(0x9E3779B9), step1 = Lanes::broadcast(0xBB67AE85);
  for (int round = 0; round < 10; ++round) {
    const auto a = Lanes::multiply(counter.words[0], m0);
    const auto b = Lanes::multiply(counter.words[2], m1);
    counter = {{Lanes::exclusive_or(Lanes::exclusive_or(b.high, counter.words[1]), key_low), b.low,
                Lanes::exclusive_or(Lanes::exclusive_or(a.high, counter.words[3]), key_high), a.low}};
    key_low = Lanes::add(key_low, step0);
    key_high = Lanes::add(key_high, step1);
  }
  return counter;
}

// Calls use(slot, words) for every slot of the rows at `first`.
template <class Lanes, class Use>
inline void for_each_slot(const DrawRows& rows, std::size_t first, std::size_t fanout, std::uint32_t stream, const Use& use) {
  const auto key_low = Lanes::load(rows.key_low + first), key_high = Lanes::load(rows.key_high + first);
  const auto node_low = Lanes::load(rows.node_low + first), node_high = Lanes::load(rows.node_high + first);
  for (std::size_t slot = 0; slot < fanout; slot += 4) {
    const Counter<Lanes> block = philox_lanes<Lanes>(
        key_low, key_high,
        {{node_low, node_high, Lanes::broadcast(stream), Lanes::broadcast(static_cast<std::uint32_t>(slot / 4))}});
    for (std::size_t word = 0; word < 4 && slot + word < fanout; ++word) use(slot + word, block.words[word]);
  }
}

// Floyd's algorithm: slot j draws t from the first d - k + j + 1 entries; if t is taken, it takes the last one, which is free.
template <class Lanes>
void draw_distinct(const DrawRows& rows, std::size_t fanout, std::uint32_t stream, std::uint32_t* picks) {
  for (std::size_t first = 0; first < rows.count; first += Lanes::kCount) {
    const auto degree = Lanes::load(rows.degree + first);
    for_each_slot<Lanes>(rows, first, fanout, stream, [&](std::size_t slot, typename Lanes::Word word) {
      const auto last = Lanes::add(degree, Lanes::broadcast(static_cast<std::uint32_t>(slot - fanout)));
      const auto drawn = Lanes::multiply(word, Lanes::add(last, Lanes::broadcast(1))).high;
      auto taken = Lanes::none();
      for (std::size_t earlier = 0; earlier < slot; ++earlier) {
        taken = Lanes::either(taken, Lanes::equal(drawn, Lanes::load(picks + earlier * kMaxRows + first)));
      }
      Lanes::store(picks + slot * kMaxRows + first, Lanes::select(taken, last, drawn));
    });
  }
}

template <class Lanes>
void draw_repeated(const DrawRows& rows, std::size_t fanout, std::uint32_t stream, std::uint32_t* picks) {
  for (std::size_t first = 0; first < rows.count; first += Lanes::kCount) {
    const auto degree = Lanes::load(rows.degree + first);
    for_each_slot<Lanes>(rows, first, fanout, stream, [&](std::size_t slot, typename Lanes::Word word) {
      Lanes::store(picks + slot * kMaxRows + first, Lanes::multiply(word, degree).high);
    });
  }
}

template <class Lanes>
void draw_words(const DrawRows& rows, std::size_t fanout, std::uint32_t stream, std::uint32_t* words) {
  for (std::size_t first = 0; first < rows.count; first += Lanes::kCount) {
    for_each_slot<Lanes>(rows, first, fanout, stream, [&](std::size_t slot, typename Lanes::Word word) {
      Lanes::store(words + slot * kMaxRows + first, word);
    });
  }
}

}  // namespace
}  // namespace khop
