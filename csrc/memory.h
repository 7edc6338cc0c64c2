// Memory straight from the system, for arrays that live long or are large.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

namespace khop {

inline constexpr std::size_t kPageBytes = std::size_t{1} << 16;  // a multiple of the pages of every machine
inline constexpr std::size_t kHugePageBytes = std::size_t{1} << 21;

// Zeroed pages that take no memory until they are written; huge ones, suitably aligned, where the kernel grants them and
// `bytes` is large enough. Throws std::bad_alloc.
void* map_memory(std::size_t bytes);
void unmap_memory(void* data, std::size_t bytes) noexcept;  // as many as were mapped

// Tells the kernel that this memory is going to be read at random: back it by huge pages (page tables are half the cost of a
// random read) and, where it is a mapped file that fits the machine easily, begin to read it now. Call it before the first
// access. Advice only: where the kernel refuses, nothing changes.
void expect_random_access(const void* data, std::size_t bytes) noexcept;

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
