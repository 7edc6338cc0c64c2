// Exact dictionaries from keys, strings or 64-bit integers, to the ids 0, 1, 2, ... in the order of first appearance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "growing_array.h"
#include "zeroed_words.h"

namespace khop {

// Throws std::invalid_argument unless there is at least one offset, and offsets ascend within [0, bytes].
void check_offset_span(std::span<const std::int64_t> offsets, std::size_t bytes);

// Concatenated strings: string i is bytes[offsets[i], offsets[i + 1]). The caller checks the offsets.
struct TextKeys {
  std::span<const std::int64_t> offsets;  // strings + 1
  const char* bytes = nullptr;

  std::int64_t size() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::string_view operator[](std::int64_t at) const {
    const auto begin = offsets[static_cast<std::size_t>(at)], end = offsets[static_cast<std::size_t>(at) + 1];
    return {bytes + begin, static_cast<std::size_t>(end - begin)};
  }
};

struct IntegerKeys {
  std::span<const std::int64_t> values;

  std::int64_t size() const { return static_cast<std::int64_t>(values.size()); }
  std::int64_t operator[](std::int64_t at) const { return values[static_cast<std::size_t>(at)]; }
};

std::uint64_t key_hash(std::string_view key);
std::uint64_t key_hash(std::int64_t key);

// part[i] = the part of key i among 2^bits, by the bits of its hash after the first `skip`.
template <class Keys>
void key_parts(Keys keys, int skip, int bits, std::span<std::uint8_t> part);

// The keys of a table by id.
class TextPool {
 public:
  using Keys = TextKeys;
  TextPool();
  void append(std::string_view key);
  std::string_view operator[](std::int64_t id) const { return keys()[id]; }
  TextKeys keys() const { return {{offsets_.data(), offsets_.size()}, bytes_.data()}; }
  void prefetch(std::int64_t id) const { __builtin_prefetch(&offsets_[static_cast<std::size_t>(id)]); }
  void prefetch_key(std::int64_t id) const { __builtin_prefetch(bytes_.data() + offsets_[static_cast<std::size_t>(id)]); }
  std::size_t bytes() const { return offsets_.bytes() + bytes_.bytes(); }
  void move_to(const std::string& folder) {
    offsets_.move_to(folder);
    bytes_.move_to(folder);
  }

 private:
  GrowingArray<std::int64_t> offsets_;
  GrowingArray<char> bytes_;
};

class IntegerPool {
 public:
  using Keys = IntegerKeys;
  void append(std::int64_t key) { values_.append(&key, 1); }
  std::int64_t operator[](std::int64_t id) const { return values_[static_cast<std::size_t>(id)]; }
  IntegerKeys keys() const { return {{values_.data(), values_.size()}}; }
  void prefetch(std::int64_t id) const { __builtin_prefetch(&values_[static_cast<std::size_t>(id)]); }
  void prefetch_key(std::int64_t) const {}
  std::size_t bytes() const { return values_.bytes(); }
  void move_to(const std::string& folder) { values_.move_to(folder); }

 private:
  GrowingArray<std::int64_t> values_;
};

// Open addressing: a slot has 24 bits of the key's hash and 40 bits of its id + 1, or is 0. Lookups are thread-safe while no keys
// are added. Adding throws std::length_error beyond kMost keys.
template <class Pool, int kIdBits = 40>
class IdTable {
 public:
  using Keys = typename Pool::Keys;
  static constexpr std::int64_t kMost = (std::int64_t{1} << kIdBits) - 1;

  explicit IdTable(std::int64_t expected);

  std::int64_t size() const { return size_; }
  std::size_t bytes() const { return slots_.size() * sizeof(std::uint64_t) + pool_.bytes(); }
  const Pool& pool() const { return pool_; }

  // Before the table takes more memory than `bytes`, it moves to files in `folder`. Adding then throws std::system_error if the disk
  // is full.
  void spill_beyond(std::size_t bytes, std::string folder);
  bool is_spilled() const { return is_spilled_; }

  // Key i gets the id size() + i. Stops at the first key that is already in the table and returns its position, or -1.
  std::int64_t append(Keys keys);

  // ids[i] = the id of key i. New keys are added.
  void add(Keys keys, std::span<std::int64_t> ids);

  // ids[i] = the id of key i, or -1.
  void find(Keys keys, std::span<std::int64_t> ids) const;

 private:
  template <class Fn>
  void insert_all(Keys keys, Fn&& on_key);
  void grow(std::int64_t keys);
  void put_all();
  void spill_above(std::size_t slots);
  template <class Key>
  bool is_key(std::uint64_t slot, std::uint64_t hash, const Key& key) const;

  Pool pool_;
  ZeroedWords slots_;
  std::uint64_t mask_;
  std::int64_t size_ = 0;
  std::size_t most_bytes_ = static_cast<std::size_t>(-1);
  std::string folder_;
  bool is_spilled_ = false;
};

extern template class IdTable<TextPool>;
extern template class IdTable<IntegerPool>;
extern template class IdTable<IntegerPool, 8>;

}  // namespace khop
