// Tables from node ids to local ids, for node_index.h.
//
// A slot has a stamp = base + local id. Increasing the base beyond every stamp in use clears all slots at once: slots below the
// base count as empty. Stamps have 32 bits; the owner of the base refills the table before they run out.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#if defined(__SSE4_1__)
#include <smmintrin.h>
#endif

#include "memory.h"

namespace khop {

inline constexpr std::size_t kPrefetchAhead = 64;  // ids between a slot's prefetch and its use

// One slot per node of the graph.
class DenseSlots {
 public:
  using Key = std::uint32_t;

  explicit DenseSlots(std::size_t num_nodes) : stamps_(num_nodes) {}

  // Writes the local ids of ids, new ones from `count` on, and appends new ids to `nodes`, which must have room for one more than
  // will be in use. Returns the new count.
  template <class Id>
  std::size_t insert(std::span<const Id> ids, std::uint32_t base, std::size_t count, Key* nodes, std::int32_t* local) {
    std::uint32_t* const stamps = stamps_.data();
    auto next = static_cast<std::uint32_t>(count);
    const auto insert_one = [&](std::size_t i) {
      const auto node = static_cast<std::size_t>(ids[i]);
      // No branch on "seen before": it is unpredictable, and a misprediction costs more than two stores. A stamp below the base
      // becomes a number greater than every local id. GCC would branch around the store of an equal stamp.
      const std::uint32_t found = stamps[node] - base;
      std::uint32_t place = std::min(found, next);
      asm("" : "+r"(place));
      stamps[node] = base + place;
      nodes[next] = static_cast<Key>(node);
      local[i] = static_cast<std::int32_t>(place);
      next += found >= next;
    };
    const std::size_t ahead = ids.size() > kPrefetchAhead ? ids.size() - kPrefetchAhead : 0;
#pragma GCC unroll 4
    for (std::size_t i = 0; i < ahead; ++i) {
      __builtin_prefetch(stamps + ids[i + kPrefetchAhead], 1);
      insert_one(i);
    }
    for (std::size_t i = ahead; i < ids.size(); ++i) insert_one(i);
    return next;
  }

  // Writes the local ids of ids, or -1.
  template <class Id>
  void find(std::span<const Id> ids, std::uint32_t base, std::int32_t* local) const {
    const std::uint32_t* const stamps = stamps_.data();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + kPrefetchAhead < ids.size()) __builtin_prefetch(stamps + ids[i + kPrefetchAhead]);
      const std::uint32_t stamp = stamps[static_cast<std::size_t>(ids[i])];
      local[i] = stamp < base ? -1 : static_cast<std::int32_t>(stamp - base);
    }
  }

  // Clears the table, then stamps `nodes` from `base` on.
  void refill(std::span<const Key> nodes, std::uint32_t base) {
    stamps_ = ZeroedArray<std::uint32_t>(stamps_.size());
    for (const Key node : nodes) stamps_[node] = base++;
  }

 private:
  ZeroedArray<std::uint32_t> stamps_;
};

// Keys and stamps in one cache line, used entries first.
template <class Key>
struct alignas(64) Bucket {
  static constexpr std::size_t kWidth = sizeof(Key) == 4 ? 8 : 4;
  static constexpr std::uint32_t kAll = (1U << kWidth) - 1;

  // Bit i of each result: entry i is in use; entry i has the key.
  struct Bits {
    std::uint32_t used, found;
  };

  Bits look(Key key, std::uint32_t base) const {
#if defined(__SSE4_1__)
    const auto load = [](const void* from) { return _mm_load_si128(static_cast<const __m128i*>(from)); };
    const __m128i lowest = _mm_set1_epi32(static_cast<int>(base));
    const auto used = [&](std::size_t from) {
      const __m128i four = load(stamps + from);
      return _mm_cmpeq_epi32(_mm_max_epu32(four, lowest), four);
    };
    if constexpr (kWidth == 8) {
      const __m128i wanted = _mm_set1_epi32(static_cast<int>(key));
      const auto equal = [&](std::size_t from) { return _mm_cmpeq_epi32(load(keys + from), wanted); };
      const __m128i both = _mm_packs_epi16(_mm_packs_epi32(used(0), used(4)), _mm_packs_epi32(equal(0), equal(4)));
      const auto bits = static_cast<std::uint32_t>(_mm_movemask_epi8(both));
      return {bits & kAll, bits & bits >> kWidth & kAll};
    } else {
      const __m128i wanted = _mm_set1_epi64x(static_cast<long long>(key));
      const auto equal = [&](std::size_t from) { return _mm_cmpeq_epi64(load(keys + from), wanted); };
      const __m128i both = _mm_packs_epi32(used(0), _mm_packs_epi32(equal(0), equal(2)));  // an equal key sets two 16-bit lanes
      const auto bits = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(both, both)));
      return {bits & kAll, bits & bits >> kWidth & kAll};
    }
#else
    std::uint32_t used = 0, equal = 0;
    for (std::size_t i = 0; i < kWidth; ++i) {
      used |= static_cast<std::uint32_t>(stamps[i] >= base) << i;
      equal |= static_cast<std::uint32_t>(keys[i] == key) << i;
    }
    return {used, used & equal};
#endif
  }

  Key keys[kWidth];
  std::uint32_t stamps[kWidth];
};

// Buckets with linear probing, at most half full. Grows with the batch, regardless of the graph's size.
template <class NodeKey>
class HashSlots {
 public:
  using Key = NodeKey;

  explicit HashSlots(std::size_t /*num_nodes*/) : buckets_(4 * kBlock / Bucket<Key>::kWidth) {}

  // Like DenseSlots::insert.
  template <class Id>
  std::size_t insert(std::span<const Id> ids, std::uint32_t base, std::size_t count, Key* nodes, std::int32_t* local) {
    for (std::size_t first = 0; first < ids.size(); first += kBlock) {
      if (2 * (count + kBlock) > buckets_.size() * Bucket<Key>::kWidth) {
        buckets_ = ZeroedArray<Bucket<Key>>(2 * buckets_.size());
        fill({nodes, count}, base);
      }
      const Probe probe(buckets_.data(), buckets_.size(), base);
      const std::size_t last = std::min(first + kBlock, ids.size());
      for (std::size_t i = first; i < last; ++i) {
        if (i + kPrefetchAhead < ids.size()) __builtin_prefetch(probe.home(static_cast<Key>(ids[i + kPrefetchAhead])), 1);
        const auto key = static_cast<Key>(ids[i]);
        const auto place = probe.find(key);
        // No branch, like in DenseSlots.
        const std::uint32_t stamp = *place.stamp, next = base + static_cast<std::uint32_t>(count);
        const std::uint32_t now = next ^ ((stamp ^ next) & (0U - std::uint32_t{place.is_found}));
        *place.key = key;
        *place.stamp = now;
        nodes[count] = key;
        count += !place.is_found;
        local[i] = static_cast<std::int32_t>(now - base);
      }
    }
    return count;
  }

  // Like DenseSlots::find.
  template <class Id>
  void find(std::span<const Id> ids, std::uint32_t base, std::int32_t* local) const {
    const Probe probe(buckets_.data(), buckets_.size(), base);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + kPrefetchAhead < ids.size()) __builtin_prefetch(probe.home(static_cast<Key>(ids[i + kPrefetchAhead])));
      const auto place = probe.find(static_cast<Key>(ids[i]));
      local[i] = place.is_found ? static_cast<std::int32_t>(*place.stamp - base) : -1;
    }
  }

  // Like DenseSlots::refill.
  void refill(std::span<const Key> nodes, std::uint32_t base) {
    buckets_ = ZeroedArray<Bucket<Key>>(buckets_.size());
    fill(nodes, base);
  }

 private:
  static constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;
  static constexpr std::size_t kBlock = 256;  // ids inserted between checks of the load

  template <class Buckets>  // a Bucket, const or not
  struct Probe {
    Probe(Buckets* table, std::size_t size, std::uint32_t lowest)
        : buckets(table), mask(size - 1), shift(64 - std::countr_zero(size)), base(lowest) {}

    // The entry of the key, or the free entry for it.
    struct Place {
      std::conditional_t<std::is_const_v<Buckets>, const std::uint32_t, std::uint32_t>* stamp;
      std::conditional_t<std::is_const_v<Buckets>, const Key, Key>* key;
      bool is_found;
    };

    // Fibonacci hashing (Knuth, TAOCP 3, 6.4): the high bits of the product are well mixed even for consecutive ids.
    Buckets* home(Key key) const { return buckets + ((std::uint64_t{key} * kGolden) >> shift); }

    Place find(Key key) const {
      Buckets* bucket = home(key);
      auto [used, found] = bucket->look(key, base);
      while (found == 0 && used == Buckets::kAll) [[unlikely]] {
        bucket = buckets + ((static_cast<std::size_t>(bucket - buckets) + 1) & mask);
        const auto bits = bucket->look(key, base);
        used = bits.used;
        found = bits.found;
      }
      const int at = std::countr_zero(found | (used + 1));  // entries in use come first
      return {bucket->stamps + at, bucket->keys + at, found != 0};
    }

    Buckets* buckets;
    std::size_t mask;
    int shift;
    std::uint32_t base;
  };

  void fill(std::span<const Key> nodes, std::uint32_t base) {
    const Probe probe(buckets_.data(), buckets_.size(), base);
    std::uint32_t stamp = base;
    for (const Key node : nodes) {
      const auto place = probe.find(node);
      *place.key = node;
      *place.stamp = stamp++;
    }
  }

  ZeroedArray<Bucket<Key>> buckets_;
};

}  // namespace khop
