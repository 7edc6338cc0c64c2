// The hash of strings follows wyhash (Wang Yi), with its constants: a multiplication of 64 x 64 bits per 16 bytes.
// Keys are processed in batches: first all hashes, then all slots, then all keys, each prefetched a batch ahead.
#include "id_table.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace khop {
namespace {

constexpr std::int64_t kBatch = 64;
constexpr std::uint64_t kSeed = 0x9E3779B97F4A7C15, kFirst = 0xA0761D6478BD642F, kLast = 0xE7037ED1A0B428DB;

__extension__ typedef unsigned __int128 Wide;

std::uint64_t folded(std::uint64_t a, std::uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

template <class Word>
std::uint64_t word_at(const char* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

std::uint64_t few_bytes(const char* bytes, std::size_t count) {
  const auto at = [bytes](std::size_t place) { return std::uint64_t{static_cast<unsigned char>(bytes[place])}; };
  return count == 0 ? 0 : at(0) << 16 | at(count >> 1) << 8 | at(count - 1);
}

// A power of two, at most three quarters full.
std::size_t slots_for(std::int64_t keys) {
  std::size_t slots = 64;
  while (slots / 4 * 3 < static_cast<std::size_t>(keys)) slots *= 2;
  return slots;
}

// The word of a slot; `kIdBits` of its bits are the id + 1.
template <int kIdBits>
struct Slot {
  static constexpr std::uint64_t kIdMask = (std::uint64_t{1} << kIdBits) - 1;

  static std::uint64_t of(std::uint64_t hash, std::int64_t id) { return (hash & ~kIdMask) | static_cast<std::uint64_t>(id + 1); }
  static bool may_be(std::uint64_t slot, std::uint64_t hash) { return ((slot ^ hash) & ~kIdMask) == 0; }
  static std::int64_t id(std::uint64_t slot) { return static_cast<std::int64_t>(slot & kIdMask) - 1; }
};

}  // namespace

void check_offset_span(std::span<const std::int64_t> offsets, std::size_t bytes) {
  if (offsets.empty()) throw std::invalid_argument("offsets have no entry: one more than strings is needed");
  if (offsets.front() < 0 || offsets.back() > static_cast<std::int64_t>(bytes)) {
    throw std::invalid_argument("offsets " + std::to_string(offsets.front()) + " to " + std::to_string(offsets.back()) + ": there are " +
                                std::to_string(bytes) + " bytes");
  }
  for (std::size_t at = 1; at < offsets.size(); ++at) {
    if (offsets[at] < offsets[at - 1]) throw std::invalid_argument("offsets decrease at " + std::to_string(at));
  }
}

std::uint64_t key_hash(std::string_view key) {
  const char* bytes = key.data();
  const std::size_t count = key.size();
  std::uint64_t a = 0, b = 0, seed = kSeed;
  if (count >= 8) {
    for (std::size_t left = count; left > 16; left -= 16, bytes += 16) {
      seed = folded(word_at<std::uint64_t>(bytes) ^ kFirst, word_at<std::uint64_t>(bytes + 8) ^ seed);
    }
    const char* const end = key.data() + count;
    a = word_at<std::uint64_t>(count >= 16 ? end - 16 : key.data());
    b = word_at<std::uint64_t>(end - 8);
  } else if (count >= 4) {
    a = word_at<std::uint32_t>(bytes);
    b = word_at<std::uint32_t>(bytes + count - 4);
  } else {
    a = few_bytes(bytes, count);
  }
  return folded(kLast ^ count, folded(a ^ kFirst, b ^ seed));
}

std::uint64_t key_hash(std::int64_t key) { return folded(static_cast<std::uint64_t>(key) ^ kFirst, kSeed ^ kLast); }

template <class Keys>
void key_parts(Keys keys, int skip, int bits, std::span<std::uint8_t> part) {
  for (std::int64_t i = 0; i < keys.size(); ++i) {
    part[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>((key_hash(keys[i]) >> skip) & ((std::uint64_t{1} << bits) - 1));
  }
}
template void key_parts(TextKeys, int, int, std::span<std::uint8_t>);
template void key_parts(IntegerKeys, int, int, std::span<std::uint8_t>);

TextPool::TextPool() {
  const std::int64_t begin = 0;
  offsets_.append(&begin, 1);
}

void TextPool::append(std::string_view key) {
  bytes_.append(key.data(), key.size());
  const auto end = static_cast<std::int64_t>(bytes_.size());
  offsets_.append(&end, 1);
}

template <class Pool, int kIdBits>
IdTable<Pool, kIdBits>::IdTable(std::int64_t expected) : slots_(slots_for(expected)), mask_(slots_.size() - 1) {}

template <class Pool, int kIdBits>
void IdTable<Pool, kIdBits>::grow(std::int64_t keys) {
  const std::size_t wanted = slots_for(keys);
  spill_above(wanted <= slots_.size() ? 0 : wanted);
  if (wanted <= slots_.size()) return;
  slots_ = is_spilled_ ? ZeroedWords(wanted, folder_) : ZeroedWords(wanted);
  mask_ = wanted - 1;
  put_all();
}

template <class Pool, int kIdBits>
void IdTable<Pool, kIdBits>::spill_beyond(std::size_t bytes, std::string folder) {
  most_bytes_ = bytes;
  folder_ = std::move(folder);
}

// Moves to files if the table with a new array of `slots` slots and its keys exceeds the memory limit.
template <class Pool, int kIdBits>
void IdTable<Pool, kIdBits>::spill_above(std::size_t slots) {
  const std::size_t needed = (slots_.size() + slots) * sizeof(std::uint64_t) + pool_.bytes() + pool_.bytes() / 4;
  if (is_spilled_ || needed <= most_bytes_) return;
  pool_.move_to(folder_);
  slots_ = ZeroedWords(slots_.size(), folder_);
  put_all();
  is_spilled_ = true;
}

// Inserts all keys of the pool into empty slots.
template <class Pool, int kIdBits>
void IdTable<Pool, kIdBits>::put_all() {
  std::array<std::uint64_t, kBatch> hashes;
  for (std::int64_t first = 0; first < size_; first += kBatch) {
    const std::int64_t count = std::min(kBatch, size_ - first);
    for (std::int64_t i = 0; i < count; ++i) {
      hashes[i] = key_hash(pool_[first + i]);
      __builtin_prefetch(&slots_[hashes[i] & mask_], 1);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint64_t at = hashes[i] & mask_;
      while (slots_[at] != 0) at = (at + 1) & mask_;
      slots_[at] = Slot<kIdBits>::of(hashes[i], first + i);
    }
  }
}

// True if the slot has the id of `key`, whose hash is given.
template <class Pool, int kIdBits>
template <class Key>
bool IdTable<Pool, kIdBits>::is_key(std::uint64_t slot, std::uint64_t hash, const Key& key) const {
  return Slot<kIdBits>::may_be(slot, hash) && pool_[Slot<kIdBits>::id(slot)] == key;
}

// on_key(position, id, is_new) for every key, in order, until it returns false.
template <class Pool, int kIdBits>
template <class Fn>
void IdTable<Pool, kIdBits>::insert_all(Keys keys, Fn&& on_key) {
  std::array<std::uint64_t, kBatch> hashes;
  for (std::int64_t first = 0; first < keys.size(); first += kBatch) {
    const std::int64_t count = std::min(kBatch, keys.size() - first);
    grow(size_ + count);
    for (std::int64_t i = 0; i < count; ++i) {
      hashes[i] = key_hash(keys[first + i]);
      __builtin_prefetch(&slots_[hashes[i] & mask_], 1);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const auto key = keys[first + i];
      std::uint64_t at = hashes[i] & mask_;
      while (slots_[at] != 0 && !is_key(slots_[at], hashes[i], key)) at = (at + 1) & mask_;
      const bool is_new = slots_[at] == 0;
      if (!on_key(first + i, is_new ? size_ : Slot<kIdBits>::id(slots_[at]), is_new)) return;
      if (!is_new) continue;
      if (size_ == kMost) throw std::length_error("a dictionary holds at most " + std::to_string(kMost) + " keys");
      pool_.append(key);
      slots_[at] = Slot<kIdBits>::of(hashes[i], size_++);
    }
  }
  spill_above(0);  // the last keys may have exceeded the limit
}

template <class Pool, int kIdBits>
std::int64_t IdTable<Pool, kIdBits>::append(Keys keys) {
  std::int64_t twice = -1;
  insert_all(keys, [&](std::int64_t at, std::int64_t, bool is_new) {
    if (!is_new) twice = at;
    return is_new;
  });
  return twice;
}

template <class Pool, int kIdBits>
void IdTable<Pool, kIdBits>::add(Keys keys, std::span<std::int64_t> ids) {
  insert_all(keys, [&](std::int64_t at, std::int64_t id, bool) {
    ids[static_cast<std::size_t>(at)] = id;
    return true;
  });
}

template <class Pool, int kIdBits>
void IdTable<Pool, kIdBits>::find(Keys keys, std::span<std::int64_t> ids) const {
  std::array<std::uint64_t, kBatch> hashes, places;
  for (std::int64_t first = 0; first < keys.size(); first += kBatch) {
    const std::int64_t count = std::min(kBatch, keys.size() - first);
    for (std::int64_t i = 0; i < count; ++i) {
      hashes[i] = key_hash(keys[first + i]);
      __builtin_prefetch(&slots_[hashes[i] & mask_]);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint64_t at = hashes[i] & mask_;
      while (slots_[at] != 0 && !Slot<kIdBits>::may_be(slots_[at], hashes[i])) at = (at + 1) & mask_;
      places[i] = at;
      if (slots_[at] != 0) pool_.prefetch(Slot<kIdBits>::id(slots_[at]));
    }
    for (std::int64_t i = 0; i < count; ++i) {
      if (slots_[places[i]] != 0) pool_.prefetch_key(Slot<kIdBits>::id(slots_[places[i]]));
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const auto key = keys[first + i];
      std::uint64_t at = places[i];
      while (slots_[at] != 0 && !is_key(slots_[at], hashes[i], key)) at = (at + 1) & mask_;
      ids[static_cast<std::size_t>(first + i)] = Slot<kIdBits>::id(slots_[at]);  // an empty slot is 0, the id -1
    }
  }
}

template class IdTable<TextPool>;
template class IdTable<IntegerPool>;
template class IdTable<IntegerPool, 8>;  // for the test of the most keys

}  // namespace khop
