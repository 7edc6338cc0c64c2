#include "digest.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "check.h"

namespace {

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// The specification's test data: the upper byte of a generator that multiplies by itself.
std::vector<std::uint8_t> pseudo_random(std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  std::uint64_t generator = 2654435761U;
  for (std::uint8_t& byte : bytes) {
    byte = static_cast<std::uint8_t>(generator >> 56);
    generator *= 11400714785074694797U;
  }
  return bytes;
}

}  // namespace

TEST(xxh64_gives_the_published_values) {
  CHECK_EQUAL(khop::xxh64({}, 0), 0xEF46DB3751D8E999U);
  CHECK_EQUAL(khop::xxh64({}, 2654435761U), 0xAC75FDA2929B17EFU);
  CHECK_EQUAL(khop::xxh64(bytes_of("a"), 0), 0xD24EC4F1A98C6E5BU);
  CHECK_EQUAL(khop::xxh64(bytes_of("abc"), 0), 0x44BC2CF5AD770999U);
  CHECK_EQUAL(khop::xxh64(bytes_of("Nobody inspects the spammish repetition"), 0), 0xFBCEA83C8A378BF1U);
  const std::vector<std::uint8_t> data = pseudo_random(222);
  const std::span<const std::uint8_t> all = data;
  CHECK_EQUAL(khop::xxh64(all.first(1), 0), 0xE934A84ADB052768U);
  CHECK_EQUAL(khop::xxh64(all.first(14), 0), 0x8282DCC4994E35C8U);
  CHECK_EQUAL(khop::xxh64(all, 0), 0xB641AE8CB691C174U);
}

TEST(the_digest_is_that_of_its_blocks_on_any_number_of_threads) {
  const std::vector<std::uint8_t> data = pseudo_random(9 * khop::digest_block_bytes + 13);
  const std::span<const std::uint8_t> all = data;
  for (const std::size_t size : {std::size_t{0}, std::size_t{5}, khop::digest_block_bytes, data.size()}) {
    std::vector<std::uint64_t> blocks;
    for (std::size_t first = 0; first < size; first += khop::digest_block_bytes) {
      blocks.push_back(khop::xxh64(all.subspan(first, std::min(khop::digest_block_bytes, size - first)), 0));
    }
    const std::uint64_t expected = khop::xxh64({reinterpret_cast<const std::uint8_t*>(blocks.data()), 8 * blocks.size()}, 0);
    for (const int threads : {1, 2, 7}) CHECK_EQUAL(khop::digest(all.first(size), threads), expected);
  }
}

TEST(every_flipped_bit_changes_the_digest) {
  std::vector<std::uint8_t> data = pseudo_random(khop::digest_block_bytes + 77);
  const std::uint64_t before = khop::digest(data, 1);
  for (std::size_t bit = 0; bit < 8 * 77; ++bit) {  // of the last, short block
    std::uint8_t& byte = data[khop::digest_block_bytes + bit / 8];
    byte = static_cast<std::uint8_t>(byte ^ (1U << bit % 8));
    CHECK(khop::digest(data, 1) != before);
    byte = static_cast<std::uint8_t>(byte ^ (1U << bit % 8));
  }
}
