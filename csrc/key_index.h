// An index of keys in files: keys in the order of their ids, and the ids by bucket of the key's XXH64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "id_table.h"

namespace khop {

// XXH64 with seed 0: of the bytes of a string, or of the 8 little-endian bytes of an integer.
std::uint64_t key_digest(std::string_view key);
std::uint64_t key_digest(std::int64_t key);

// The bucket of key i is the first `bits` bits of its digest; its tag is the last 16 bits.
template <class Keys>
void key_buckets(Keys keys, int bits, std::span<std::int64_t> bucket, std::span<std::int16_t> tag);

// Bucket b has the ids and tags at positions buckets[b] to buckets[b + 1] - 1.
template <class Id>
struct KeyIndex {
  int bits;
  std::span<const std::int64_t> buckets;  // 2^bits + 1
  std::span<const Id> ids;
  std::span<const std::int16_t> tags;
};

// found[i] = the id of wanted key i, or -1 if it is not stored. Throws DamagedArray for invalid files; never reads out of bounds.
template <class Id, class Keys>
void find_keys(const KeyIndex<Id>& index, Keys stored, std::size_t stored_bytes, Keys wanted, std::span<std::int64_t> found);

}  // namespace khop
