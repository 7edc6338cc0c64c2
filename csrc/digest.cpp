// XXH64: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
#include "digest.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "parallel.h"

namespace khop {
namespace {

constexpr std::uint64_t prime_1 = 0x9E3779B185EBCA87, prime_2 = 0xC2B2AE3D27D4EB4F, prime_3 = 0x165667B19E3779F9,
                        prime_4 = 0x85EBCA77C2B2AE63, prime_5 = 0x27D4EB2F165667C5;
constexpr std::size_t stripe_bytes = 32;

static_assert(std::endian::native == std::endian::little, "arrays of a graph folder are little-endian too");

template <class Word>
std::uint64_t word_at(const std::uint8_t* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

std::uint64_t round_of(std::uint64_t lane, std::uint64_t word) { return std::rotl(lane + word * prime_2, 31) * prime_1; }

std::uint64_t with_lane(std::uint64_t sum, std::uint64_t lane) { return (sum ^ round_of(0, lane)) * prime_1 + prime_4; }

std::uint64_t sum_of_stripes(const std::uint8_t*& next, std::size_t stripes, std::uint64_t seed) {
  std::uint64_t a = seed + prime_1 + prime_2, b = seed + prime_2, c = seed, d = seed - prime_1;
  for (std::size_t stripe = 0; stripe < stripes; ++stripe, next += stripe_bytes) {
    a = round_of(a, word_at<std::uint64_t>(next));
    b = round_of(b, word_at<std::uint64_t>(next + 8));
    c = round_of(c, word_at<std::uint64_t>(next + 16));
    d = round_of(d, word_at<std::uint64_t>(next + 24));
  }
  const std::uint64_t sum = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
  return with_lane(with_lane(with_lane(with_lane(sum, a), b), c), d);
}

}  // namespace

std::uint64_t xxh64(std::span<const std::uint8_t> bytes, std::uint64_t seed) {
  const std::uint8_t* next = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t sum = left < stripe_bytes ? seed + prime_5 : sum_of_stripes(next, left / stripe_bytes, seed);
  left %= stripe_bytes;
  sum += bytes.size();
  for (; left >= 8; left -= 8, next += 8) {
    sum = std::rotl(sum ^ round_of(0, word_at<std::uint64_t>(next)), 27) * prime_1 + prime_4;
  }
  if (left >= 4) {
    sum = std::rotl(sum ^ (word_at<std::uint32_t>(next) * prime_1), 23) * prime_2 + prime_3;
    left -= 4;
    next += 4;
  }
  for (; left > 0; --left, ++next) sum = std::rotl(sum ^ (*next * prime_5), 11) * prime_1;
  sum = (sum ^ (sum >> 33)) * prime_2;
  sum = (sum ^ (sum >> 29)) * prime_3;
  return sum ^ (sum >> 32);
}

std::uint64_t digest(std::span<const std::uint8_t> bytes, int threads) {
  const std::size_t blocks = (bytes.size() + digest_block_bytes - 1) / digest_block_bytes;
  std::vector<std::uint64_t> of_blocks(blocks);
  parallel_for(threads, static_cast<std::int64_t>(blocks), 4, [&](std::int64_t begin, std::int64_t end) {
    for (auto block = static_cast<std::size_t>(begin); block < static_cast<std::size_t>(end); ++block) {
      const std::size_t first = block * digest_block_bytes;
      of_blocks[block] = xxh64(bytes.subspan(first, std::min(digest_block_bytes, bytes.size() - first)), 0);
    }
  });
  return xxh64({reinterpret_cast<const std::uint8_t*>(of_blocks.data()), blocks * sizeof(std::uint64_t)}, 0);
}

}  // namespace khop
