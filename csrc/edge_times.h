// Times of edges from the graph's columns, without derived data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "checks.h"
#include "simd.h"

namespace khop {

// An integer column of any width; empty: no column.
class WholeNumbers {
 public:
  WholeNumbers() = default;
  template <class T>
  explicit WholeNumbers(std::span<const T> numbers)
      : data_(reinterpret_cast<const char*>(numbers.data())),
        size_(static_cast<std::int64_t>(numbers.size())),
        bytes_(static_cast<std::int64_t>(sizeof(T))),
        is_signed_(std::numeric_limits<T>::is_signed) {}

  std::int64_t size() const { return size_; }
  const std::int64_t* as_int64() const { return bytes_ == 8 ? reinterpret_cast<const std::int64_t*>(data_) : nullptr; }
  KHOP_INLINE void prefetch(std::int64_t i) const { __builtin_prefetch(data_ + i * bytes_); }

  KHOP_INLINE std::int64_t operator[](std::int64_t i) const {
    switch (bytes_) {
      case 8:
        return reinterpret_cast<const std::int64_t*>(data_)[i];
      case 4:
        return reinterpret_cast<const std::int32_t*>(data_)[i];
      case 2:
        return reinterpret_cast<const std::int16_t*>(data_)[i];
      default:
        return is_signed_ ? std::int64_t{reinterpret_cast<const std::int8_t*>(data_)[i]}
                          : std::int64_t{reinterpret_cast<const std::uint8_t*>(data_)[i]};
    }
  }

 private:
  const char* data_ = nullptr;
  std::int64_t size_ = 0, bytes_ = 8;
  bool is_signed_ = true;
};

// The time of an edge is the edge's, its source's, or the later of both.
struct EdgeTimes {
  WholeNumbers edges;    // one per edge
  WholeNumbers sources;  // one per source node
  WholeNumbers indices;  // the source of each edge; read if sources have times

  // The times, if only edges have times and these have 64 bits; else null.
  const std::int64_t* plain() const { return sources.size() == 0 ? edges.as_int64() : nullptr; }

  KHOP_INLINE void prefetch(std::int64_t edge) const {
    if (edges.size() > 0) edges.prefetch(edge);
    if (sources.size() > 0) indices.prefetch(edge);
  }
  KHOP_INLINE void prefetch_source(std::int64_t edge) const {
    if (sources.size() > 0) sources.prefetch(indices[edge]);
  }

  // The time of an edge in range. Throws DamagedArray for an invalid source.
  KHOP_INLINE std::int64_t operator[](std::int64_t edge) const {
    const std::int64_t own = edges.size() > 0 ? edges[edge] : std::numeric_limits<std::int64_t>::min();
    return sources.size() > 0 ? std::max(own, of_source(edge)) : own;
  }

 private:
  KHOP_INLINE std::int64_t of_source(std::int64_t edge) const {
    const std::int64_t source = indices[edge];
    if (static_cast<std::uint64_t>(source) >= static_cast<std::uint64_t>(sources.size())) [[unlikely]] refuse(edge, source);
    return sources[source];
  }

  [[noreturn, gnu::cold, gnu::noinline]] void refuse(std::int64_t edge, std::int64_t source) const {
    throw DamagedArray("indices", "the edge at position " + std::to_string(edge) + " has source id " + std::to_string(source) +
                                      ": must be in [0, " + std::to_string(sources.size()) + ")");
  }
};

}  // namespace khop
