#include "check.h"
#include "parallel.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

TEST(every_item_is_visited_once) {
  for (const int threads : {0, 1, 2, 7}) {
    for (const std::int64_t n : {0, 1, 5, 1000}) {
      std::vector<int> visits(static_cast<std::size_t>(n));
      khop::parallel_for(threads, n, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
      });
      for (const int count : visits) CHECK_EQUAL(count, 1);
    }
  }
}

TEST(the_lowest_part_that_fails_is_the_one_reported_and_the_others_end) {
  std::atomic<int> ended = 0;
  std::string reported;
  try {
    khop::parallel_parts(5, [&](int part) {
      if (part == 1 || part == 3) throw std::runtime_error(std::to_string(part));
      ++ended;
    });
  } catch (const std::runtime_error& error) {
    reported = error.what();
  }
  CHECK_EQUAL(reported, "1");
  CHECK_EQUAL(ended.load(), 3);
}

TEST(calls_from_several_threads_and_from_within_a_part_all_end) {
  std::atomic<int> visits = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        khop::parallel_parts(3, [&](int) { khop::parallel_parts(2, [&](int) { ++visits; }); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK_EQUAL(visits.load(), 4 * 50 * 3 * 2);
}

TEST(a_forked_child_works_on_alone) {
  khop::parallel_parts(4, [](int) {});  // its parent's threads are there
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> visits = 0;
    khop::parallel_parts(4, [&](int) { ++visits; });
    // Ends as another program: valgrind would look for leaks here, where nobody holds what was the lost threads'.
    const char* const end = visits == 4 ? "true" : "false";
    execlp(end, end, nullptr);
    _exit(2);
  }
  int status = -1;
  CHECK_EQUAL(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(more_parts_than_threads_are_shared_among_so_many_and_no_more) {
  khop::parallel_parts(8, [](int) {});  // threads that could all join
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<int> visits = 0;
  khop::parallel_parts(2, 100, [&](int) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    ++visits;
  });
  CHECK_EQUAL(visits.load(), 100);
  CHECK(threads.size() <= 2);
}
