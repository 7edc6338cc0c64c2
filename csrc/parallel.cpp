#include "parallel.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

namespace khop {
namespace {

// One call of run_parts. Parts are claimed in order; the thread that completes the last part wakes the caller.
class Job {
 public:
  Job(int parts, void (*call)(void*, int), void* context) : parts_(parts), call_(call), context_(context), left_(parts) {}

  bool exhausted() const { return next_.load(std::memory_order_relaxed) >= parts_; }

  void work() {
    for (int part = next_++; part < parts_; part = next_++) {
      try {
        call_(context_, part);
      } catch (...) {
        keep(std::current_exception(), part);
      }
      if (--left_ == 0) left_.notify_all();
    }
  }

  void wait() {
    for (int left = left_; left != 0; left = left_) left_.wait(left);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void keep(std::exception_ptr error, int part) {
    const std::lock_guard lock(mutex_);
    if (part < failed_part_) {
      failed_part_ = part;
      error_ = std::move(error);
    }
  }

  const int parts_;
  void (*const call_)(void*, int);
  void* const context_;
  std::atomic<int> next_{0};
  std::atomic<int> left_;
  std::mutex mutex_;
  int failed_part_ = 1 << 30;
  std::exception_ptr error_;
};

class Pool {
 public:
  void offer(const std::shared_ptr<Job>& job, int helpers) {
    const std::lock_guard lock(mutex_);
    grow(helpers);
    offers_.push_back({job, helpers});
    if (helpers == 1) {
      available_.notify_one();
    } else {
      available_.notify_all();
    }
  }

  void withdraw(const std::shared_ptr<Job>& job) {
    const std::lock_guard lock(mutex_);
    std::erase_if(offers_, [&](const Offer& offer) { return offer.job == job; });
  }

 private:
  struct Offer {
    std::shared_ptr<Job> job;
    int seats;  // helpers that may still join
  };

  // If the system does not start more threads, the work is done by fewer.
  void grow(int workers) {
    try {
      for (; workers_ < workers; ++workers_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      return;
    }
  }

  [[noreturn]] void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      std::erase_if(offers_, [](const Offer& offer) { return offer.seats == 0 || offer.job->exhausted(); });
      if (offers_.empty()) {
        available_.wait(lock);
        continue;
      }
      --offers_.front().seats;
      const std::shared_ptr<Job> job = offers_.front().job;
      lock.unlock();
      job->work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable available_;
  std::deque<Offer> offers_;
  int workers_ = 0;
};

// Never destroyed, because its threads may outlive all static objects.
Pool& pool() {
  static Pool* instance = [] {
    // A forked child does not have the threads, and may have a locked mutex.
    pthread_atfork(nullptr, nullptr, [] { instance = new Pool; });
    return new Pool;
  }();
  return *instance;
}

}  // namespace

void run_parts(int threads, int parts, void (*call)(void*, int), void* context) {
  const auto job = std::make_shared<Job>(parts, call, context);
  pool().offer(job, std::min(threads, parts) - 1);
  job->work();
  pool().withdraw(job);
  job->wait();
}

}  // namespace khop
