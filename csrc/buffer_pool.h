// Memory for results that come and go with every batch. A fresh buffer costs more than what is written into it (page faults),
// so blocks that consumers let go are kept and handed out again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_set>

namespace khop {

// Calls of a GPU's runtime that pin memory, so that copies from it need no wait. Each returns 0 on success.
struct Pinning {
  int (*select_device)(int device) = nullptr;  // for the calling thread, before a call that pins
  int (*pin)(void* data, std::size_t bytes, unsigned flags) = nullptr;
  int (*unpin)(void* data) = nullptr;
  int (*last_error)() = nullptr;  // clears the error of a refused call, which later calls would report
  int device = 0;
};

struct MemoryBlock {
  void* data = nullptr;
  std::size_t bytes = 0;  // its capacity, not what was asked for
};

// Thread-safe. Never waits for a block to come back: where none is free, memory is fresh.
class BufferPool {
 public:
  struct Usage {
    std::size_t free_bytes = 0;  // kept for later
    std::size_t lent_bytes = 0;  // in use
    std::size_t reused = 0;      // blocks handed out that had been used before
    std::size_t fresh = 0;       // blocks that came from the system
    std::size_t pinned_bytes = 0;
    std::size_t refused = 0;  // blocks that the runtime did not pin
  };

  // Keeps at most `limit_bytes` of free blocks; what is lent does not count. Where it would be more, sizes that have not been
  // asked for longest go back to the system.
  explicit BufferPool(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A block of at least `bytes`, aligned to 64; its contents are whatever they are. Throws std::bad_alloc.
  MemoryBlock acquire(std::size_t bytes);
  void release(MemoryBlock block) noexcept;

  // Frees what is kept above the new limit at once.
  void set_limit(std::size_t limit_bytes);
  Usage usage() const;

  // From now on, blocks of 128 KiB and more are pinned once, when they come from the system. Free blocks go back. A block that
  // the runtime refuses to pin is used as it is, and no other one is tried.
  void set_pinning(const Pinning& pinning);

 private:
  // Free blocks of one size; each begins with the address of the next, so that keeping one allocates nothing.
  struct Shelf {
    void* first = nullptr;
    std::size_t bytes = 0;
    std::uint64_t asked = 0;  // when a block of this size was last asked for
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
  std::unordered_set<void*> pinned_;  // blocks, free and lent
  std::array<Shelf, 4 * 65 + 1> shelves_;  // four sizes per doubling, in rising order
};

// The pool of results of the calling thread: an ordinary one, or the one whose blocks are pinned. A pinned block must not go back
// while a GPU copies from it, so only threads that take care of that use the second. Pools are never destroyed: results may outlive
// every static object.
BufferPool& buffer_pool();
BufferPool& ordinary_pool();
BufferPool& pinned_pool();

// Choose the pool of the calling thread; returns the choice before.
bool use_pinned_pool(bool is_chosen);

}  // namespace khop
