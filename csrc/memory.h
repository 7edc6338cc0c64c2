// Memory straight from the system, for arrays that live long or are large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

namespace khop {

inline constexpr std::size_t kPageBytes = std::size_t{1} << 16;  // a multiple of the pages of every machine
inline constexpr std::size_t kHugePageBytes = std::size_t{1} << 21;

// Zeroed pages that take no memory until they are written; huge ones, suitably aligned, where the kernel grants them and
// `bytes` is large enough. Throws std::bad_alloc.
void* map_memory(std::size_t bytes);
void unmap_memory(void* data, std::size_t bytes) noexcept;  // as many as were mapped

// Advice to the kernel about memory that is read at random. Where it refuses, nothing changes. Call these before the first access.
//
// Back the memory by huge pages: page tables are half the cost of a random read.
void expect_random_access(const void* data, std::size_t bytes) noexcept;

// Read all of a mapped file in the background, beginning now.
void read_in_background(const void* data, std::size_t bytes) noexcept;

// Read no more of a mapped file than the pages that are touched: by default the kernel reads megabytes around each. The range is
// remembered until forget_sparse_reads, so that gathering requests its rows ahead; threads may ask meanwhile.
void expect_sparse_reads(const void* data, std::size_t bytes);
void forget_sparse_reads(const void* data) noexcept;
bool has_sparse_reads(const void* data) noexcept;  // an address within such a range

// Start reading the pages of rows of a mapped file, in the order of the file, and return without waiting for the disk.
// Rows are `row_bytes` long, and begin at `rows`.
void request_rows(std::span<const std::byte* const> rows, std::int64_t row_bytes);

// An array of trivial T that starts as zeros.
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
