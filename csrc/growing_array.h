// A growing array of trivial T. Large arrays grow without a copy: the system moves their pages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "file_block.h"

namespace khop {

template <class T>
class GrowingArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  GrowingArray() = default;
  ~GrowingArray() { release(); }
  GrowingArray(const GrowingArray&) = delete;
  GrowingArray& operator=(const GrowingArray&) = delete;

  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return capacity_ * sizeof(T); }
  const T& operator[](std::size_t at) const { return data_[at]; }

  // Reserves `count` entries in total. Throws std::bad_alloc.
  void reserve(std::size_t count) {
    if (count <= capacity_) return;
    const std::size_t wanted = std::max(count, capacity_ + capacity_ / 4 + 64);
    if (wanted > static_cast<std::size_t>(-1) / sizeof(T)) throw std::bad_alloc();
    data_ = static_cast<T*>(file_.is_open() ? in_file(wanted) : in_memory(wanted));
    capacity_ = wanted;
  }

  // Moves the entries to a file in a folder. Without effect if it throws std::system_error.
  void move_to(const std::string& folder) {
    FileBlock file(folder);
    file.resize(std::max<std::size_t>(1, capacity_) * sizeof(T));
    if (size_ > 0) std::memcpy(file.data(), data_, size_ * sizeof(T));
    release();
    file_ = std::move(file);
    data_ = reinterpret_cast<T*>(file_.data());
  }

  void append(const T* values, std::size_t count) {
    reserve(size_ + count);
    if (count > 0) std::memcpy(data_ + size_, values, count * sizeof(T));
    size_ += count;
  }

 private:
  void* in_memory(std::size_t count) {
    void* const moved = std::realloc(data_, count * sizeof(T));
    if (moved == nullptr) throw std::bad_alloc();
    return moved;
  }

  void* in_file(std::size_t count) {
    file_.resize(count * sizeof(T));
    return file_.data();
  }

  void release() {
    if (!file_.is_open()) std::free(data_);
  }

  FileBlock file_;
  T* data_ = nullptr;
  std::size_t size_ = 0, capacity_ = 0;
};

}  // namespace khop
