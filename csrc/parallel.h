// Parallel loops whose split depends only on the arguments, never on timing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace khop {

// Calls call(context, part) once for every part in [0, parts), on the caller's and up to threads - 1 other threads, and returns
// when all are done. Threads are reused between calls. An exception does not necessarily stop the other parts; that of the lowest
// part is rethrown. Never waits for a free thread: the caller runs the parts that no other thread has begun.
void run_parts(int threads, int parts, void (*call)(void*, int), void* context);

// The same with fn(part).
template <class Fn>
void parallel_parts(int threads, int parts, Fn&& fn) {
  if (threads <= 1 || parts <= 1) {
    for (int part = 0; part < parts; ++part) fn(part);
    return;
  }
  run_parts(threads, parts, [](void* context, int part) { (*static_cast<std::remove_reference_t<Fn>*>(context))(part); }, &fn);
}

// The same with a thread for each part.
template <class Fn>
void parallel_parts(int parts, Fn&& fn) {
  parallel_parts(parts, parts, fn);
}

// The number of threads for n items, at most `threads`, with at least `grain` items each.
inline int parts_for(std::int64_t threads, std::int64_t n, std::int64_t grain) {
  constexpr std::int64_t most = 1 << 16;
  return static_cast<int>(std::clamp<std::int64_t>(n / grain, 1, std::clamp<std::int64_t>(threads, 1, most)));
}

// The first item of a part, with n items split evenly.
inline std::int64_t part_begin(std::int64_t n, int part, int parts) {
  const std::int64_t share = n / parts;
  return share * part + std::min<std::int64_t>(part, n % parts);
}

// Like parts_for, with several parts per thread, for results that do not depend on their number. Threads on busy cores then take
// fewer parts.
inline int spare_parts(int threads, std::int64_t n, std::int64_t grain) {
  return threads > 1 ? parts_for(4 * std::int64_t{threads}, n, grain) : 1;
}

// Calls fn(begin, end) for consecutive ranges that cover [0, n), with at least `grain` items except in the last.
template <class Fn>
void parallel_for(int threads, std::int64_t n, std::int64_t grain, Fn&& fn) {
  if (n <= 0) return;
  const int parts = spare_parts(threads, n, grain);
  parallel_parts(threads, parts, [&](int part) { fn(part_begin(n, part, parts), part_begin(n, part + 1, parts)); });
}

}  // namespace khop
