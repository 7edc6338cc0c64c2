// Philox4x32-10 and the two ways a word becomes a number in a range. docs/randomness.md is the specification.
#pragma once

#include <array>
#include <cstdint>

namespace khop {

using Words = std::array<std::uint32_t, 4>;

// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The generator that Triton has.
inline Words philox(std::uint64_t key, Words counter) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

}  // namespace khop
