#include "buffer_pool.h"

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"

using khop::BufferPool;
using khop::MemoryBlock;

TEST(a_block_holds_what_was_asked_for_and_is_aligned) {
  BufferPool pool(0);
  for (std::size_t bytes = 0; bytes < (std::size_t{1} << 24); bytes = bytes * 2 + 1) {
    for (const std::size_t wanted : {bytes, bytes + 1, bytes + bytes / 3}) {
      const MemoryBlock block = pool.acquire(wanted);
      CHECK(block.bytes >= wanted);
      CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(block.data) % 64, std::uintptr_t{0});
      std::memset(block.data, 0xAB, block.bytes);
      pool.release(block);
    }
  }
  CHECK_EQUAL(pool.usage().lent_bytes, std::size_t{0});
}

TEST(a_released_block_comes_back_for_a_similar_size) {
  BufferPool pool(std::size_t{1} << 30);
  for (const std::size_t bytes : {std::size_t{5000}, std::size_t{1} << 22}) {
    const MemoryBlock block = pool.acquire(bytes);
    pool.release(block);
    const MemoryBlock again = pool.acquire(bytes - bytes / 100);
    CHECK(again.data == block.data);
    pool.release(again);
  }
  CHECK_EQUAL(pool.usage().reused, std::size_t{2});
}

TEST(a_block_of_the_next_size_will_do) {
  BufferPool pool(std::size_t{1} << 30);
  const MemoryBlock large = pool.acquire((std::size_t{1} << 20) + 1);
  pool.release(large);
  const MemoryBlock found = pool.acquire(std::size_t{1} << 20);
  CHECK(found.data == large.data);
  CHECK_EQUAL(found.bytes, large.bytes);
  pool.release(found);
  CHECK_EQUAL(pool.usage().lent_bytes, std::size_t{0});
}

TEST(an_empty_pool_gives_fresh_memory_and_blocks_in_use_are_distinct) {
  BufferPool pool(std::size_t{1} << 30);
  std::vector<MemoryBlock> blocks;
  for (int i = 0; i < 20; ++i) {
    blocks.push_back(pool.acquire(3000));
    std::memset(blocks.back().data, i, 3000);
  }
  for (int i = 0; i < 20; ++i) CHECK_EQUAL(static_cast<const unsigned char*>(blocks[static_cast<std::size_t>(i)].data)[2999], i);
  CHECK_EQUAL(pool.usage().fresh, std::size_t{20});
  for (const MemoryBlock& block : blocks) pool.release(block);
}

TEST(free_memory_is_bounded_and_the_size_asked_for_last_stays) {
  constexpr std::size_t bytes = std::size_t{1} << 20;
  BufferPool pool(3 * bytes);
  std::vector<MemoryBlock> stale, current;
  for (int i = 0; i < 3; ++i) stale.push_back(pool.acquire(bytes));
  for (const MemoryBlock& block : stale) pool.release(block);
  CHECK_EQUAL(pool.usage().free_bytes, 3 * bytes);
  const MemoryBlock wanted = pool.acquire(bytes / 4);
  pool.release(wanted);
  CHECK(pool.usage().free_bytes <= 3 * bytes);
  const MemoryBlock again = pool.acquire(bytes / 4);
  CHECK(again.data == wanted.data);
  pool.release(again);
  pool.set_limit(0);
  CHECK_EQUAL(pool.usage().free_bytes, std::size_t{0});
}

TEST(a_block_larger_than_the_limit_is_lent_but_not_kept) {
  BufferPool pool(1000);
  pool.release(pool.acquire(std::size_t{1} << 22));
  CHECK_EQUAL(pool.usage().free_bytes, std::size_t{0});
}

TEST(threads_share_a_pool) {
  BufferPool pool(std::size_t{1} << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int round = 0; round < 500; ++round) {
        const std::size_t bytes = static_cast<std::size_t>(1 + (round * 37 + t * 11) % 300) * 1000;
        const MemoryBlock block = pool.acquire(bytes);
        std::memset(block.data, t, bytes);
        CHECK_EQUAL(static_cast<const unsigned char*>(block.data)[bytes - 1], t);
        pool.release(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(pool.usage().lent_bytes, std::size_t{0});
}

namespace {

// A runtime that pins two blocks and refuses the third.
struct Runtime {
  inline static std::vector<void*> pinned;
  inline static int selected = -1, errors = 0, calls = 0;

  static khop::Pinning pinning() {
    pinned.clear();
    selected = -1, errors = calls = 0;
    return {.select_device = [](int device) { selected = device; return 0; },
            .pin =
                [](void* data, std::size_t, unsigned) {
                  if (++calls > 2) return 1;
                  pinned.push_back(data);
                  return 0;
                },
            .unpin = [](void* data) { return static_cast<int>(std::erase(pinned, data) != 1); },
            .last_error = [] { return ++errors; },
            .device = 3};
  }
};

}  // namespace

TEST(a_large_block_is_pinned_once_and_unpinned_before_it_goes_back) {
  constexpr std::size_t bytes = std::size_t{1} << 20;
  BufferPool pool(std::size_t{1} << 30);
  pool.release(pool.acquire(bytes));
  pool.set_pinning(Runtime::pinning());
  CHECK_EQUAL(pool.usage().free_bytes, std::size_t{0});
  const MemoryBlock block = pool.acquire(bytes);
  CHECK_EQUAL(Runtime::selected, 3);
  pool.release(block);
  for (int i = 0; i < 5; ++i) pool.release(pool.acquire(bytes));
  pool.release(pool.acquire(1000));
  CHECK_EQUAL(Runtime::calls, 1);
  CHECK_EQUAL(pool.usage().pinned_bytes, block.bytes);
  pool.set_limit(0);
  CHECK(Runtime::pinned.empty());
  CHECK_EQUAL(pool.usage().pinned_bytes, std::size_t{0});
  CHECK_EQUAL(Runtime::errors, 0);
}

TEST(a_block_lent_before_pinning_began_is_not_unpinned) {
  BufferPool pool(0);
  const MemoryBlock block = pool.acquire(std::size_t{1} << 20);
  pool.set_pinning(Runtime::pinning());
  pool.release(block);
  CHECK_EQUAL(Runtime::errors, 0);
}

TEST(a_refusal_ends_pinning_and_the_block_is_used) {
  BufferPool pool(0);
  pool.set_pinning(Runtime::pinning());
  std::vector<MemoryBlock> blocks;
  for (int i = 0; i < 5; ++i) {
    blocks.push_back(pool.acquire(std::size_t{1} << 20));
    std::memset(blocks.back().data, i, blocks.back().bytes);
  }
  CHECK_EQUAL(Runtime::calls, 3);
  CHECK_EQUAL(Runtime::errors, 1);
  CHECK_EQUAL(pool.usage().refused, std::size_t{1});
  for (const MemoryBlock& block : blocks) pool.release(block);
  CHECK(Runtime::pinned.empty());
  CHECK_EQUAL(Runtime::errors, 1);
}
