#include "permutation.h"

#include <algorithm>
#include <bit>

#include "random.h"

namespace khop {
namespace {

constexpr std::uint32_t kPurpose = 0x5048;
constexpr std::uint32_t kRounds = 8;
constexpr int kLeastBits = 8;  // with fewer bits, eight rounds do not reach all orders evenly

// Luby and Rackoff 1988: a Feistel network is a bijection for any round function. Numbers outside [0, count) are encrypted again
// until they are inside (cycle walking; Black and Rogaway 2002), which is also a bijection.
class Permutation {
 public:
  Permutation(std::uint64_t key, std::uint64_t count) : key_(key), count_(count) {
    const int bits = std::max(kLeastBits, static_cast<int>(std::bit_width(count - 1)));
    right_bits_ = bits - bits / 2;
    left_mask_ = mask(bits / 2);
    right_mask_ = mask(right_bits_);
  }

  std::uint64_t operator()(std::uint64_t index) const {
    do {
      index = encrypt(index);
    } while (index >= count_);
    return index;
  }

 private:
  static std::uint32_t mask(int bits) { return static_cast<std::uint32_t>((std::uint64_t{1} << bits) - 1); }

  std::uint64_t encrypt(std::uint64_t index) const {
    auto left = static_cast<std::uint32_t>(index >> right_bits_);
    auto right = static_cast<std::uint32_t>(index) & right_mask_;
    for (std::uint32_t round = 0; round < kRounds; round += 2) {
      left ^= word(right, round) & left_mask_;
      right ^= word(left, round + 1) & right_mask_;
    }
    return (std::uint64_t{left} << right_bits_) | right;
  }

  std::uint32_t word(std::uint32_t half, std::uint32_t round) const {
    return philox(key_, {half, round, kPurpose, 0})[0];
  }

  std::uint64_t key_;
  std::uint64_t count_;
  int right_bits_;
  std::uint32_t left_mask_;
  std::uint32_t right_mask_;
};

}  // namespace

void permutation_slice(std::uint64_t key, std::uint64_t count, std::uint64_t start, std::span<std::int64_t> output) {
  const Permutation permutation(key, count);
  for (std::size_t i = 0; i < output.size(); ++i) output[i] = static_cast<std::int64_t>(permutation(start + i));
}

}  // namespace khop
