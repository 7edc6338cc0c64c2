// Memory for results that come and go with every batch. A fresh buffer costs more than what is written into it (page faults),
// so blocks that consumers let go are kept and handed out again.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace khop {

struct MemoryBlock {
  void* data = nullptr;
  std::size_t bytes = 0;  // its capacity, not what was asked for
};

// Thread-safe. Never waits for a block to come back: where none is free, memory is fresh.
class BufferPool {
 public:
  struct Usage {
    std::size_t free_bytes;  // kept for later
    std::size_t lent_bytes;  // in use
    std::size_t reused;      // blocks handed out that were used before
    std::size_t fresh;       // blocks that came from the system
  };

  // Keeps at most `limit_bytes` of free blocks; what is lent does not count.
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

 private:
  void shrink(std::size_t limit_bytes) noexcept;

  mutable std::mutex mutex_;
  std::size_t limit_bytes_;
  Usage usage_{};
  std::map<std::size_t, std::vector<void*>> free_;  // capacity -> blocks
};

// The pool of this process. It is never destroyed: results may outlive every static object.
BufferPool& buffer_pool();

}  // namespace khop
