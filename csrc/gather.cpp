#include "gather.h"

#include "parallel.h"

#include <algorithm>
#include <cstring>

namespace khop {
namespace {

constexpr std::int64_t kAhead = 8;             // rows fetched before they are copied
constexpr std::int64_t kLine = 64;
constexpr std::int64_t kPartBytes = 1 << 18;   // less is not worth a thread

void prefetch(const std::byte* row, std::int64_t bytes) {
  for (std::int64_t line = 0; line < std::min<std::int64_t>(bytes, 512); line += kLine) __builtin_prefetch(row + line);
}

void gather_range(const std::byte* table, std::int64_t row_bytes, std::span<const std::int64_t> ids, std::byte* out) {
  const auto count = static_cast<std::int64_t>(ids.size());
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetch(table + ids[i + kAhead] * row_bytes, row_bytes);
    std::memcpy(out + i * row_bytes, table + ids[i] * row_bytes, static_cast<std::size_t>(row_bytes));
  }
}

}  // namespace

void gather(const std::byte* table, std::int64_t row_bytes, std::span<const std::int64_t> ids, std::byte* out, int threads) {
  if (row_bytes == 0) return;
  const std::int64_t grain = std::max<std::int64_t>(kPartBytes / row_bytes, 1);
  parallel_for(threads, static_cast<std::int64_t>(ids.size()), grain, [&](std::int64_t begin, std::int64_t end) {
    gather_range(table, row_bytes, ids.subspan(begin, end - begin), out + begin * row_bytes);
  });
}

}  // namespace khop
