// The first step of an external sort by destination: edges are grouped by ranges of consecutive destinations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace khop {

// Range r has the destinations first + [r << shift, (r + 1) << shift). On return, the edges of range r are
// order[begin[r], begin[r + 1]), in input order; begin has ranges + 1 entries. Returns -1, or the position of the first edge with
// a destination outside all ranges; the outputs are then undefined.
template <class Id>
std::int64_t deal_edges(std::span<const Id> destinations, std::int64_t first, int shift, std::span<std::int64_t> begin,
                        std::span<std::uint32_t> order);

// Row i of `out` is row order[i] of `table`, each of row_bytes. Returns the first position of `order` outside [0, rows), or -1.
std::int64_t take_rows(const std::byte* table, std::int64_t rows, std::size_t row_bytes, std::span<const std::uint32_t> order,
                       std::byte* out);

}  // namespace khop
