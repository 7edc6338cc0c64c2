// Shared by all binding files: array types, and the transfer of a buffer to Python.
// Bindings check, convert, release the GIL and call; they hold no logic.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>

#include "buffer_pool.h"

namespace nb = nanobind;

namespace khop::bindings {

// A contiguous read-only CPU array. Objects with __dlpack__ or the buffer protocol are not copied.
template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = In<std::int64_t>;
using Ids32 = In<std::int32_t>;
using Offsets = In<std::int64_t>;
using Values = In<std::int64_t>;
using Bytes = In<std::uint8_t>;

// A contiguous torch tensor that is returned.
template <class T>
using Out = nb::ndarray<T, nb::pytorch, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> span_of(const In<T>& array) {
  return {array.data(), array.size()};
}

inline std::span<const std::int64_t> optional_span(const std::optional<Ids>& ids) {
  return ids ? span_of(*ids) : std::span<const std::int64_t>{};
}

// A block of the pool that will become a tensor; an exception returns it to the pool.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t count) : pool_(buffer_pool()), block_(pool_.acquire(bytes_of(count))) {}
  ~Buffer() {
    if (block_.data != nullptr) pool_.release(block_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() const { return static_cast<T*>(block_.data); }

  // The first entries as a tensor, whose destruction returns the block. Call once, with the GIL held.
  Out<T> tensor(std::initializer_list<std::size_t> shape) {
    auto* const lent = new Lent{pool_, block_};
    nb::capsule owner(lent, [](void* pointer) noexcept {
      auto* const back = static_cast<Lent*>(pointer);
      back->pool.release(back->block);
      delete back;
    });
    T* const values = data();
    block_ = {};
    return Out<T>(values, shape, owner);
  }

 private:
  static std::size_t bytes_of(std::size_t count) {
    std::size_t bytes = 0;
    return __builtin_mul_overflow(count, sizeof(T), &bytes) ? std::numeric_limits<std::size_t>::max() : bytes;
  }

  struct Lent {
    BufferPool& pool;
    MemoryBlock block;
  };

  BufferPool& pool_;
  MemoryBlock block_;
};

}  // namespace khop::bindings

void bind_assign(nb::module_& module);
void bind_cooccurrences(nb::module_& module);
void bind_dense(nb::module_& module);
void bind_file_rows(nb::module_& module);
void bind_hop(nb::module_& module);
void bind_importing(nb::module_& module);
void bind_key_index(nb::module_& module);
void bind_links(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_mixture(nb::module_& module);
void bind_owners(nb::module_& module);
void bind_random(nb::module_& module);
void bind_rules(nb::module_& module);
void bind_sampling(nb::module_& module);
