// An array of trivial T that grows at its end without a second copy: the system moves the pages of a large block.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace khop {

template <class T>
class GrowingArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  GrowingArray() = default;
  ~GrowingArray() { std::free(data_); }
  GrowingArray(const GrowingArray&) = delete;
  GrowingArray& operator=(const GrowingArray&) = delete;

  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return capacity_ * sizeof(T); }
  const T& operator[](std::size_t at) const { return data_[at]; }

  // Room for `count` entries in all. Throws std::bad_alloc.
  void reserve(std::size_t count) {
    if (count <= capacity_) return;
    const std::size_t wanted = std::max(count, capacity_ + capacity_ / 4 + 64);
    if (wanted > static_cast<std::size_t>(-1) / sizeof(T)) throw std::bad_alloc();
    void* const moved = std::realloc(data_, wanted * sizeof(T));
    if (moved == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(moved);
    capacity_ = wanted;
  }

  void append(const T* values, std::size_t count) {
    reserve(size_ + count);
    if (count > 0) std::memcpy(data_ + size_, values, count * sizeof(T));
    size_ += count;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0, capacity_ = 0;
};

}  // namespace khop
