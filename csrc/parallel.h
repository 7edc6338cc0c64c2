// Work shared among threads, so that the split depends on the caller's numbers alone and never on timing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace khop {

// Calls call(context, part) once for every part in [0, parts), on the caller's and up to threads - 1 other threads, and returns
// when all are done. Threads are kept between calls. A part that throws need not stop the others; the exception of the lowest
// part is rethrown. Never waits for a thread to become free: what nobody else has begun, the caller does itself.
void run_parts(int threads, int parts, void (*call)(void*, int), void* context);

// As above, with fn(part).
template <class Fn>
void parallel_parts(int threads, int parts, Fn&& fn) {
  if (threads <= 1 || parts <= 1) {
    for (int part = 0; part < parts; ++part) fn(part);
    return;
  }
  run_parts(threads, parts, [](void* context, int part) { (*static_cast<std::remove_reference_t<Fn>*>(context))(part); }, &fn);
}

// As above, a thread for each part.
template <class Fn>
void parallel_parts(int parts, Fn&& fn) {
  parallel_parts(parts, parts, fn);
}

// How many of `threads` are worth waking for n items, when fewer than `grain` of them are not worth a thread.
inline int parts_for(std::int64_t threads, std::int64_t n, std::int64_t grain) {
  constexpr std::int64_t most = 1 << 16;
  return static_cast<int>(std::clamp<std::int64_t>(n / grain, 1, std::clamp<std::int64_t>(threads, 1, most)));
}

// The first item of a part when n items are split evenly.
inline std::int64_t part_begin(std::int64_t n, int part, int parts) {
  const std::int64_t share = n / parts;
  return share * part + std::min<std::int64_t>(part, n % parts);
}

// As parts_for, but several for each thread, where results do not depend on how many there are: a thread that gets less of its
// processor than the others, because something else runs there, leaves them some of its parts.
inline int spare_parts(int threads, std::int64_t n, std::int64_t grain) {
  return threads > 1 ? parts_for(4 * std::int64_t{threads}, n, grain) : 1;
}

// Calls fn(begin, end) over consecutive ranges that cover [0, n), none but the last smaller than `grain`.
template <class Fn>
void parallel_for(int threads, std::int64_t n, std::int64_t grain, Fn&& fn) {
  if (n <= 0) return;
  const int parts = spare_parts(threads, n, grain);
  parallel_parts(threads, parts, [&](int part) { fn(part_begin(n, part, parts), part_begin(n, part + 1, parts)); });
}

}  // namespace khop
