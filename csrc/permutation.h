// A keyed permutation of [0, count) without memory. docs/randomness.md is the specification.
#pragma once

#include <cstdint>
#include <span>

namespace khop {

// Writes entries start, start + 1, ... of the permutation to `output`; start + output.size() <= count < 2^63.
void permutation_slice(std::uint64_t key, std::uint64_t count, std::uint64_t start, std::span<std::int64_t> output);

}  // namespace khop
