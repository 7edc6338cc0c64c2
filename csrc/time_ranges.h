// Ranges of edges within a time limit, in rows sorted by time. docs/randomness.md specifies them.
#pragma once

#include <cstdint>
#include <span>

#include "edge_times.h"
#include "outline.h"

namespace khop {

struct RangeRequest {
  std::span<const std::int64_t> nodes;  // the frontier: rows of the graph, may repeat
  std::span<const std::int64_t> until;  // the limit of each frontier row
  std::int64_t before = -1;             // begin of a row's times before its limit; -1: the first time
  std::int64_t after = 0;               // at most 0: their end relative to the limit
  std::int64_t most = -1;               // keep the last `most` of them; -1: all
  int threads = 1;
};

// Writes begin and end of frontier row i's range to ranges[2 i] and ranges[2 i + 1]: positions of edges, whose `times` are
// nondecreasing within a row. The search uses `times` and their outline. The first and the last edge of every range, and for
// int64 times of edges also their neighbors, are compared with the limits by their `own` times, so that damaged derived data cannot
// add an edge beyond the limits. Throws std::invalid_argument for a node that is not a row, and DamagedArray for an invalid row.
void time_ranges(std::span<const std::int64_t> indptr, const Rising& times, const EdgeTimes& own, const RangeRequest& request,
                 std::int64_t* ranges);

// The first position with a time earlier than the previous one in its row, or -1. Throws DamagedArray unless indptr splits all
// edges into rows.
std::int64_t first_unsorted(std::span<const std::int64_t> indptr, const EdgeTimes& times, std::int64_t edges, int threads);

// Writes the stable order by time within each row: order[new position] = old position. Throws DamagedArray unless indptr splits the
// times into rows.
void sort_rows(std::span<const std::int64_t> indptr, std::span<const std::int64_t> times, std::int64_t* order, int threads);

}  // namespace khop
