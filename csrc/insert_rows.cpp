#include "insert_rows.h"

#include <cstring>

namespace khop {
namespace {

template <class Width>
std::int64_t insert(const std::byte* table, std::int64_t rows, Width width, std::span<const std::int64_t> at,
                    const std::byte* added, std::byte* out) {
  const auto copy = [&](const std::byte* from, std::size_t count) {
    if (count > 0) std::memcpy(out, from, count * width);
    out += count * width;
  };
  std::int64_t done = 0;  // rows of the table
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (at[i] < done || at[i] > rows) return static_cast<std::int64_t>(i);
    copy(table + static_cast<std::size_t>(done) * width, static_cast<std::size_t>(at[i] - done));
    done = at[i];
    std::memcpy(out, added + i * width, width);
    out += width;
  }
  copy(table + static_cast<std::size_t>(done) * width, static_cast<std::size_t>(rows - done));
  return -1;
}

template <std::size_t N>
struct Fixed {
  constexpr operator std::size_t() const { return N; }
};

}  // namespace

std::int64_t insert_rows(const std::byte* table, std::int64_t rows, std::size_t width, std::span<const std::int64_t> at,
                         const std::byte* added, std::byte* out) {
  switch (width) {  // of ids and times: a copy of constant size is one instruction
    case 2:
      return insert(table, rows, Fixed<2>{}, at, added, out);
    case 4:
      return insert(table, rows, Fixed<4>{}, at, added, out);
    case 8:
      return insert(table, rows, Fixed<8>{}, at, added, out);
    default:
      return insert(table, rows, width, at, added, out);
  }
}

}  // namespace khop
