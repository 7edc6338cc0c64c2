// The first step of a sort by destination that does not fit in memory: edges are dealt to ranges of consecutive destinations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace khop {

// Range r holds the destinations first + [r << shift, (r + 1) << shift). On return range r's edges are
// order[begin[r], begin[r + 1]), in input order; begin has one entry more than there are ranges. Returns the position of the
// first edge with a destination outside all ranges, and then nothing else of use; -1 where there is none.
template <class Id>
std::int64_t deal_edges(std::span<const Id> destinations, std::int64_t first, int shift, std::span<std::int64_t> begin,
                        std::span<std::uint32_t> order);

// Row i of `out` is row order[i] of `table`, each of row_bytes. Returns the first position of `order` outside [0, rows), or -1.
std::int64_t take_rows(const std::byte* table, std::int64_t rows, std::size_t row_bytes, std::span<const std::uint32_t> order,
                       std::byte* out);

}  // namespace khop
