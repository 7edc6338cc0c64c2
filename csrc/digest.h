// A fast digest of bytes, to detect damage. It does not protect against forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace khop {

inline constexpr std::size_t digest_block_bytes = std::size_t{1} << 20;

// XXH64 (seed 0) of the little-endian XXH64 (seed 0) of each block of `digest_block_bytes`; the last block may be shorter. Empty
// input has no blocks. The same for any number of threads. Any change within 8 aligned bytes of a block changes its XXH64, so a
// changed bit is missed only if two different lists of block digests collide, with a probability of 2^-64.
std::uint64_t digest(std::span<const std::uint8_t> bytes, int threads);

// XXH64 as in its specification.
std::uint64_t xxh64(std::span<const std::uint8_t> bytes, std::uint64_t seed);

}  // namespace khop
