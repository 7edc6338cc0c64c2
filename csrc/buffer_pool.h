// Memory for the results of batches. New memory costs more than writing to it (page faults), so released blocks are reused.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_set>

namespace khop {

// Functions of a GPU runtime that pin memory, for asynchronous copies. Each returns 0 on success.
struct Pinning {
  int (*select_device)(int device) = nullptr;  // for the calling thread, before a call that pins
  int (*pin)(void* data, std::size_t bytes, unsigned flags) = nullptr;
  int (*unpin)(void* data) = nullptr;
  int (*last_error)() = nullptr;  // clears the error of a refused call, which later calls would report
  int device = 0;
};

struct MemoryBlock {
  void* data = nullptr;
  std::size_t bytes = 0;  // its capacity, not the requested size
};

// Thread-safe. Never waits for a block to be returned: without a free one, it allocates memory.
class BufferPool {
 public:
  struct Usage {
    std::size_t free_bytes = 0;  // available for reuse
    std::size_t lent_bytes = 0;  // in use
    std::size_t reused = 0;      // reused blocks
    std::size_t fresh = 0;       // newly allocated blocks
    std::size_t pinned_bytes = 0;
    std::size_t refused = 0;  // blocks that the runtime refused to pin
  };

  // Keeps at most `limit_bytes` of free blocks, not counting blocks in use. Beyond the limit, blocks of the least recently
  // requested sizes are returned to the system.
  explicit BufferPool(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A block of at least `bytes`, aligned to 64, uninitialized. Throws std::bad_alloc.
  MemoryBlock acquire(std::size_t bytes);
  void release(MemoryBlock block) noexcept;

  // Frees the blocks above the new limit immediately.
  void set_limit(std::size_t limit_bytes);
  Usage usage() const;

  // From now on, blocks of at least 128 KiB are pinned once, when they are allocated. Free blocks are returned to the system. After
  // the runtime refuses a block, that one and all later ones are used unpinned.
  void set_pinning(const Pinning& pinning);

 private:
  // Free blocks of one size, as a linked list: each begins with the address of the next.
  struct Shelf {
    void* first = nullptr;
    std::size_t bytes = 0;
    std::uint64_t asked = 0;  // when a block of this size was last requested
  };

  void* take(Shelf& shelf) noexcept;
  void shrink(std::size_t limit_bytes) noexcept;
  void pin(MemoryBlock block, const Pinning& pinning);
  void give_back(MemoryBlock block) noexcept;

  mutable std::mutex mutex_;
  std::size_t limit_bytes_;
  Usage usage_;
  std::uint64_t clock_ = 0;
  Pinning pinning_;
  std::unordered_set<void*> pinned_;  // blocks, free and in use
  std::array<Shelf, 4 * 65 + 1> shelves_;  // four sizes per doubling, ascending
};

// The pool of the calling thread's results, unpinned or pinned. A pinned block must not be returned while a GPU copies from it, so
// only threads that ensure this use the pinned pool. Pools are never destroyed, because results may outlive all static objects.
BufferPool& buffer_pool();
BufferPool& ordinary_pool();
BufferPool& pinned_pool();

// Selects the pool of the calling thread; returns the previous selection.
bool use_pinned_pool(bool is_chosen);

}  // namespace khop
