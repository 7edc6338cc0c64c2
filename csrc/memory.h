// Memory straight from the system, for arrays that live long or are large.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

namespace khop {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kHugePageBytes = std::size_t{1} << 21;

// Zeroed pages that take no memory until they are written; huge ones, suitably aligned, where the kernel grants them and
// `bytes` is large enough. `bytes` is a multiple of kPageBytes. Throws std::bad_alloc.
void* map_memory(std::size_t bytes);
void unmap_memory(void* data, std::size_t bytes) noexcept;

// Tells the kernel that this memory is going to be read at random: back it by huge pages (page tables are half the cost of a
// random read) and, where it is a mapped file that fits the machine easily, begin to read it now. Call it before the first
// access. Advice only: where the kernel refuses, nothing changes.
void expect_random_access(const void* data, std::size_t bytes) noexcept;

// An array of trivial T that starts as zeros.
template <class T>
class ZeroedArray {
 public:
  explicit ZeroedArray(std::size_t count)
      : count_(count), bytes_((std::max<std::size_t>(1, count) * sizeof(T) + kPageBytes - 1) / kPageBytes * kPageBytes) {
    data_ = static_cast<T*>(map_memory(bytes_));
  }
  ~ZeroedArray() {
    if (data_ != nullptr) unmap_memory(data_, bytes_);
  }
  ZeroedArray(ZeroedArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(other.count_), bytes_(other.bytes_) {}
  ZeroedArray& operator=(ZeroedArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t at) { return data_[at]; }
  const T& operator[](std::size_t at) const { return data_[at]; }

 private:
  T* data_ = nullptr;
  std::size_t count_;
  std::size_t bytes_;
};

}  // namespace khop
