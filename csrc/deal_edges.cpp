#include "deal_edges.h"

#include <cstring>
#include <utility>

namespace khop {
namespace {

template <std::size_t bytes>
void take(const std::byte* table, std::span<const std::uint32_t> order, std::byte* out) {
  for (const std::uint32_t row : order) {
    std::memcpy(out, table + bytes * row, bytes);
    out += bytes;
  }
}

}  // namespace

template <class Id>
std::int64_t deal_edges(std::span<const Id> destinations, std::int64_t first, int shift, std::span<std::int64_t> begin,
                        std::span<std::uint32_t> order) {
  const auto ranges = static_cast<std::uint64_t>(begin.size() - 1);
  const auto range_of = [&](Id destination) {
    return (static_cast<std::uint64_t>(destination) - static_cast<std::uint64_t>(first)) >> shift;  // huge for destinations below the first
  };
  for (auto& count : begin) count = 0;
  for (std::size_t edge = 0; edge < destinations.size(); ++edge) {
    const std::uint64_t range = range_of(destinations[edge]);
    if (range >= ranges) return static_cast<std::int64_t>(edge);
    ++begin[range];
  }
  std::int64_t place = 0;
  for (auto& count : begin) place += std::exchange(count, place);
  for (std::size_t edge = 0; edge < destinations.size(); ++edge) {
    order[static_cast<std::size_t>(begin[range_of(destinations[edge])]++)] = static_cast<std::uint32_t>(edge);
  }
  for (std::size_t range = ranges; range > 0; --range) begin[range] = begin[range - 1];  // each is now the end of its range
  begin[0] = 0;
  return -1;
}

template std::int64_t deal_edges(std::span<const std::int32_t>, std::int64_t, int, std::span<std::int64_t>, std::span<std::uint32_t>);
template std::int64_t deal_edges(std::span<const std::int64_t>, std::int64_t, int, std::span<std::int64_t>, std::span<std::uint32_t>);

std::int64_t take_rows(const std::byte* table, std::int64_t rows, std::size_t row_bytes, std::span<const std::uint32_t> order,
                       std::byte* out) {
  for (std::size_t at = 0; at < order.size(); ++at) {
    if (order[at] >= rows) return static_cast<std::int64_t>(at);
  }
  switch (row_bytes) {
    case 1: take<1>(table, order, out); break;
    case 2: take<2>(table, order, out); break;
    case 4: take<4>(table, order, out); break;
    case 8: take<8>(table, order, out); break;
    default:
      for (const std::uint32_t row : order) {
        std::memcpy(out, table + row_bytes * row, row_bytes);
        out += row_bytes;
      }
  }
  return -1;
}

}  // namespace khop
