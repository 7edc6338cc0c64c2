#include "key_index.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "checks.h"
#include "digest.h"

namespace khop {
namespace {

std::uint64_t bucket_of(std::uint64_t digest, int bits) { return bits == 0 ? 0 : digest >> (64 - bits); }

std::int16_t tag_of(std::uint64_t digest) { return std::bit_cast<std::int16_t>(static_cast<std::uint16_t>(digest)); }

// Key `id` of the files, checked.
std::string_view stored_key(TextKeys stored, std::size_t bytes, std::int64_t id) {
  const auto at = static_cast<std::size_t>(id);
  const std::int64_t begin = stored.offsets[at], end = stored.offsets[at + 1];
  if (begin < 0 || end < begin || static_cast<std::size_t>(end) > bytes) {
    throw DamagedArray("offsets", "row " + std::to_string(id) + " lies outside of the bytes");
  }
  return stored[id];
}

std::int64_t stored_key(IntegerKeys stored, std::size_t, std::int64_t id) { return stored[id]; }

}  // namespace

std::uint64_t key_digest(std::string_view key) { return xxh64({reinterpret_cast<const std::uint8_t*>(key.data()), key.size()}, 0); }

std::uint64_t key_digest(std::int64_t key) {
  std::uint8_t bytes[sizeof key];
  std::memcpy(bytes, &key, sizeof key);
  return xxh64(bytes, 0);
}

template <class Keys>
void key_buckets(Keys keys, int bits, std::span<std::int64_t> bucket, std::span<std::int16_t> tag) {
  for (std::int64_t i = 0; i < keys.size(); ++i) {
    const std::uint64_t digest = key_digest(keys[i]);
    bucket[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(bucket_of(digest, bits));
    tag[static_cast<std::size_t>(i)] = tag_of(digest);
  }
}
template void key_buckets(TextKeys, int, std::span<std::int64_t>, std::span<std::int16_t>);
template void key_buckets(IntegerKeys, int, std::span<std::int64_t>, std::span<std::int16_t>);

template <class Id, class Keys>
void find_keys(const KeyIndex<Id>& index, Keys stored, std::size_t stored_bytes, Keys wanted, std::span<std::int64_t> found) {
  for (std::int64_t i = 0; i < wanted.size(); ++i) {
    const auto key = wanted[i];
    const std::uint64_t digest = key_digest(key);
    const std::uint64_t bucket = bucket_of(digest, index.bits);
    const std::int64_t begin = index.buckets[bucket], end = index.buckets[bucket + 1];
    if (begin < 0 || end < begin || end > static_cast<std::int64_t>(index.ids.size())) {
      throw DamagedArray("buckets", "bucket " + std::to_string(bucket) + " lies outside of the ids");
    }
    std::int64_t at_id = -1;
    for (std::int64_t at = begin; at < end && at_id < 0; ++at) {
      if (index.tags[static_cast<std::size_t>(at)] != tag_of(digest)) continue;
      const std::int64_t id = index.ids[static_cast<std::size_t>(at)];
      if (id < 0 || id >= stored.size()) throw DamagedArray("rows", "position " + std::to_string(at) + " names no node");
      if (stored_key(stored, stored_bytes, id) == key) at_id = id;
    }
    found[static_cast<std::size_t>(i)] = at_id;
  }
}

#define KHOP_FIND_KEYS(Id, Keys) \
  template void find_keys(const KeyIndex<Id>&, Keys, std::size_t, Keys, std::span<std::int64_t>);
KHOP_FIND_KEYS(std::int32_t, TextKeys)
KHOP_FIND_KEYS(std::int64_t, TextKeys)
KHOP_FIND_KEYS(std::int32_t, IntegerKeys)
KHOP_FIND_KEYS(std::int64_t, IntegerKeys)

}  // namespace khop
