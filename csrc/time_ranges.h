// What a time limit leaves of each frontier row, where rows are sorted by time. docs/randomness.md specifies it.
#pragma once

#include <cstdint>
#include <span>

#include "edge_times.h"
#include "outline.h"

namespace khop {

struct RangeRequest {
  std::span<const std::int64_t> nodes;  // the frontier: rows of the graph, duplicates allowed
  std::span<const std::int64_t> until;  // the limit of each frontier row
  std::int64_t before = -1;             // how long before its limit a row's times begin; -1: at its first
  std::int64_t after = 0;               // 0 or less: how long after its limit they end
  std::int64_t most = -1;               // the last so many of them; -1: all
  int threads = 1;
};

// Writes begin and end of what is left of frontier row i to ranges[2 i] and ranges[2 i + 1]: positions of edges, whose `times` never
// fall within a row. `times` and their outline say where to look. The first and the last edge of every range are compared with the
// limits by their `own` times, and so are the edges beside them where no times are of sources: whatever is damaged of what is
// derived, no range has an edge beyond its limits. Throws std::invalid_argument for a
// node that is no row, DamagedArray for a row that is not one of the graph's.
void time_ranges(std::span<const std::int64_t> indptr, const Rising& times, const EdgeTimes& own, const RangeRequest& request,
                 std::int64_t* ranges);

// The first position whose time is earlier than the one before it in its row, or -1. Throws DamagedArray unless indptr cuts so many
// edges into rows.
std::int64_t first_unsorted(std::span<const std::int64_t> indptr, const EdgeTimes& times, std::int64_t edges, int threads);

// order[position] becomes the position that belongs there when every row is sorted by time, equal times in their order.
// Throws DamagedArray unless indptr cuts the times into rows.
void sort_rows(std::span<const std::int64_t> indptr, std::span<const std::int64_t> times, std::int64_t* order, int threads);

}  // namespace khop
