// Memory mapped from the system, for long-lived or large arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

namespace khop {

inline constexpr std::size_t kPageBytes = std::size_t{1} << 16;  // a multiple of the pages of every machine
inline constexpr std::size_t kHugePageBytes = std::size_t{1} << 21;

// Zeroed pages that do not take memory until they are written; aligned huge pages if the kernel grants them and `bytes` is large
// enough. Throws std::bad_alloc.
void* map_memory(std::size_t bytes);
void unmap_memory(void* data, std::size_t bytes) noexcept;  // `bytes` as mapped

// Advice to the kernel about memory that is read at random, without effect if it refuses. Call before the first access.
//
// Requests huge pages: page tables are half the cost of a random read.
void expect_random_access(const void* data, std::size_t bytes) noexcept;

// Starts reading a mapped file in the background.
void read_in_background(const void* data, std::size_t bytes) noexcept;

// Reads only the accessed pages of a mapped file: by default the kernel reads megabytes around each. The range is recorded until
// forget_sparse_reads, so that gathers prefetch its rows; threads may query it meanwhile.
void expect_sparse_reads(const void* data, std::size_t bytes);
void forget_sparse_reads(const void* data) noexcept;
bool has_sparse_reads(const void* data) noexcept;  // true for an address within such a range

// Prefetches the pages of rows of a mapped file, in the order of the file, without waiting for the disk. Rows have `row_bytes`
// bytes and begin at `rows`.
void request_rows(std::span<const std::byte* const> rows, std::int64_t row_bytes);

// A zero-initialized array of trivial T.
template <class T>
class ZeroedArray {
 public:
  explicit ZeroedArray(std::size_t count) : data_(static_cast<T*>(map_memory(count * sizeof(T)))), count_(count) {}
  ~ZeroedArray() {
    if (data_ != nullptr) unmap_memory(data_, count_ * sizeof(T));
  }
  ZeroedArray(ZeroedArray&& other) noexcept : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  ZeroedArray& operator=(ZeroedArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t at) { return data_[at]; }
  const T& operator[](std::size_t at) const { return data_[at]; }

 private:
  T* data_;
  std::size_t count_;
};

}  // namespace khop
