#include "buffer_pool.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "memory.h"

namespace khop {
namespace {

constexpr std::size_t kDefaultLimit = std::size_t{1} << 30;
constexpr std::size_t kSmallest = 1024;
constexpr std::size_t kMapped = std::size_t{1} << 17;  // smaller blocks have no separate memory mapping
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMostBytes = std::size_t{1} << 47;  // the address space of a process

// Four sizes per doubling, so that batches whose sizes differ by a few percent share blocks.
std::size_t capacity_for(std::size_t bytes) {
  if (bytes <= kSmallest) return kSmallest;
  const std::size_t step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

std::size_t shelf_of(std::size_t capacity) {
  const auto doubling = static_cast<std::size_t>(std::bit_width(capacity - 1));
  const std::size_t step = std::bit_floor(capacity - 1) / 4;
  return 4 * doubling + (capacity - 1) / step % 4;
}

void* fresh(std::size_t capacity) {
  if (capacity >= kMapped) return map_memory(capacity);
  void* const data = std::aligned_alloc(kAlignment, capacity);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

void to_system(MemoryBlock block) noexcept {
  if (block.bytes >= kMapped) {
    unmap_memory(block.data, block.bytes);
  } else {
    std::free(block.data);
  }
}

}  // namespace

BufferPool::~BufferPool() { shrink(0); }

MemoryBlock BufferPool::acquire(std::size_t bytes) {
  if (bytes > kMostBytes) throw std::bad_alloc();
  const std::size_t capacity = capacity_for(bytes);
  const std::size_t fitting = shelf_of(capacity);
  Pinning pinning;
  {
    const std::lock_guard lock(mutex_);
    pinning = pinning_;
    shelves_[fitting].asked = ++clock_;
    // Also accept the next size, otherwise sizes near a boundary would be stored twice.
    for (const std::size_t at : {fitting, fitting + 1}) {
      Shelf& shelf = shelves_[at];
      if (shelf.first == nullptr) continue;
      shelf.asked = clock_;
      usage_.lent_bytes += shelf.bytes;
      ++usage_.reused;
      return {take(shelf), shelf.bytes};
    }
  }
  const MemoryBlock block{fresh(capacity), capacity};
  if (pinning.pin != nullptr && capacity >= kMapped) pin(block, pinning);
  const std::lock_guard lock(mutex_);
  usage_.lent_bytes += capacity;
  ++usage_.fresh;
  return block;
}

void BufferPool::release(MemoryBlock block) noexcept {
  const std::lock_guard lock(mutex_);
  Shelf& shelf = shelves_[shelf_of(block.bytes)];
  std::memcpy(block.data, &shelf.first, sizeof(void*));
  shelf.first = block.data;
  shelf.bytes = block.bytes;
  usage_.lent_bytes -= block.bytes;
  usage_.free_bytes += block.bytes;
  shrink(limit_bytes_);
}

void BufferPool::set_limit(std::size_t limit_bytes) {
  const std::lock_guard lock(mutex_);
  limit_bytes_ = limit_bytes;
  shrink(limit_bytes);
}

void BufferPool::set_pinning(const Pinning& pinning) {
  const std::lock_guard lock(mutex_);
  shrink(0);
  pinning_ = pinning;
}

// Without the lock, because pinning takes milliseconds.
void BufferPool::pin(MemoryBlock block, const Pinning& pinning) {
  constexpr unsigned kForEveryDevice = 1;
  const bool is_pinned = pinning.select_device(pinning.device) == 0 && pinning.pin(block.data, block.bytes, kForEveryDevice) == 0;
  if (!is_pinned) static_cast<void>(pinning.last_error());
  const std::lock_guard lock(mutex_);
  if (is_pinned) {
    pinned_.insert(block.data);
    usage_.pinned_bytes += block.bytes;
  } else {
    pinning_.pin = nullptr;
    ++usage_.refused;
  }
}

void BufferPool::give_back(MemoryBlock block) noexcept {
  if (pinned_.erase(block.data) > 0) {
    if (pinning_.unpin(block.data) != 0) static_cast<void>(pinning_.last_error());
    usage_.pinned_bytes -= block.bytes;
  }
  to_system(block);
}

BufferPool::Usage BufferPool::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

void* BufferPool::take(Shelf& shelf) noexcept {
  void* const data = shelf.first;
  std::memcpy(&shelf.first, data, sizeof(void*));
  usage_.free_bytes -= shelf.bytes;
  return data;
}

void BufferPool::shrink(std::size_t limit_bytes) noexcept {
  const auto rank = [](const Shelf& shelf) { return shelf.first == nullptr ? ~std::uint64_t{0} : shelf.asked; };
  while (usage_.free_bytes > limit_bytes) {
    Shelf& oldest = *std::ranges::min_element(shelves_, {}, rank);
    give_back({take(oldest), oldest.bytes});
  }
}

namespace {

thread_local bool uses_pinned = false;

}  // namespace

BufferPool& ordinary_pool() {
  static BufferPool* const pool = new BufferPool(kDefaultLimit);
  return *pool;
}

BufferPool& pinned_pool() {
  static BufferPool* const pool = new BufferPool(kDefaultLimit);
  return *pool;
}

BufferPool& buffer_pool() { return uses_pinned ? pinned_pool() : ordinary_pool(); }

bool use_pinned_pool(bool is_chosen) { return std::exchange(uses_pinned, is_chosen); }

}  // namespace khop
