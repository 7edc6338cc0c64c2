#include "buffer_pool.h"

#include <sys/mman.h>

#include <bit>
#include <new>

namespace khop {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{1} << 21;
constexpr std::size_t kDefaultLimit = std::size_t{1} << 30;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Four sizes per doubling: batches differ by a few per cent and must find each other's blocks.
std::size_t capacity_for(std::size_t bytes) {
  if (bytes <= kPage) return kPage;
  const std::size_t step = std::bit_floor(bytes - 1) / 4;
  return round_up(bytes, step < kPage ? kPage : step);
}

void* map_anonymous(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return data;
}

void* fresh(std::size_t bytes) {
  if (bytes < kHugePage) return map_anonymous(bytes);
  // Only whole, aligned huge pages can be huge: map one more and give back what lies before and behind.
  const std::size_t mapped = bytes + kHugePage;
  auto* const base = static_cast<char*>(map_anonymous(mapped));
  auto* const data = reinterpret_cast<char*>(round_up(reinterpret_cast<std::size_t>(base), kHugePage));
  const std::size_t before = static_cast<std::size_t>(data - base), behind = mapped - before - bytes;
  if (before > 0) munmap(base, before);
  if (behind > 0) munmap(data + bytes, behind);
  madvise(data, bytes, MADV_HUGEPAGE);  // advice: where the kernel refuses, pages are small
  return data;
}

}  // namespace

BufferPool::~BufferPool() { shrink(0); }

MemoryBlock BufferPool::acquire(std::size_t bytes) {
  const std::size_t capacity = capacity_for(bytes);
  {
    const std::lock_guard lock(mutex_);
    usage_.lent_bytes += capacity;
    const auto found = free_.find(capacity);
    if (found != free_.end()) {
      void* const data = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) free_.erase(found);
      usage_.free_bytes -= capacity;
      ++usage_.reused;
      return {data, capacity};
    }
    ++usage_.fresh;
  }
  return {fresh(capacity), capacity};
}

void BufferPool::release(MemoryBlock block) noexcept {
  const std::lock_guard lock(mutex_);
  usage_.lent_bytes -= block.bytes;
  if (usage_.free_bytes + block.bytes > limit_bytes_) {
    munmap(block.data, block.bytes);
    return;
  }
  free_[block.bytes].push_back(block.data);
  usage_.free_bytes += block.bytes;
}

void BufferPool::set_limit(std::size_t limit_bytes) {
  const std::lock_guard lock(mutex_);
  limit_bytes_ = limit_bytes;
  shrink(limit_bytes);
}

BufferPool::Usage BufferPool::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

// Frees the largest blocks first: they are the fewest.
void BufferPool::shrink(std::size_t limit_bytes) noexcept {
  while (usage_.free_bytes > limit_bytes) {
    const auto largest = std::prev(free_.end());
    munmap(largest->second.back(), largest->first);
    usage_.free_bytes -= largest->first;
    largest->second.pop_back();
    if (largest->second.empty()) free_.erase(largest);
  }
}

BufferPool& buffer_pool() {
  static BufferPool* const pool = new BufferPool(kDefaultLimit);
  return *pool;
}

}  // namespace khop
