// Work shared among threads, so that the split depends on the caller's numbers alone and never on timing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace khop {

// Calls call(context, part) once for every part in [0, parts), the caller's thread taking its share, and returns when all are
// done. Threads are kept between calls. A part that throws does not stop the others; the exception of the lowest part is
// rethrown. Never waits for a thread to become free: what nobody else has begun, the caller does itself.
void run_parts(int parts, void (*call)(void*, int), void* context);

// As above, with fn(part).
template <class Fn>
void parallel_parts(int parts, Fn&& fn) {
  if (parts <= 1) {
    if (parts == 1) fn(0);
    return;
  }
  run_parts(parts, [](void* context, int part) { (*static_cast<std::remove_reference_t<Fn>*>(context))(part); }, &fn);
}

// How many of `threads` are worth waking for n items, when fewer than `grain` of them are not worth a thread.
inline int parts_for(int threads, std::int64_t n, std::int64_t grain) {
  return static_cast<int>(std::clamp<std::int64_t>(n / grain, 1, std::max(threads, 1)));
}

// The first item of a part when n items are split evenly.
inline std::int64_t part_begin(std::int64_t n, int part, int parts) {
  const std::int64_t share = n / parts;
  return share * part + std::min<std::int64_t>(part, n % parts);
}

// Calls fn(begin, end) over consecutive ranges that cover [0, n).
template <class Fn>
void parallel_for(int threads, std::int64_t n, std::int64_t grain, Fn&& fn) {
  if (n <= 0) return;
  const int parts = parts_for(threads, n, grain);
  parallel_parts(parts, [&](int part) { fn(part_begin(n, part, parts), part_begin(n, part + 1, parts)); });
}

}  // namespace khop
