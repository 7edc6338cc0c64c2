// What has to hold of ids and offsets before a kernel follows them.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace khop {

// An array of a graph holds what no graph has. `array` is its name in a graph folder, such as "indptr"; the message says the row.
struct DamagedArray : std::invalid_argument {
  DamagedArray(const char* name, const std::string& problem) : std::invalid_argument(problem), array(name) {}
  const char* array;
};

// The first position whose id is not in [0, limit), or -1. No id is in range of a limit of 0 or less.
template <class Id>
std::int64_t first_outside(std::span<const Id> ids, std::int64_t limit, int threads);

// The first position of an indptr that is not what the rows of `edges` edges ask for (it begins with 0, never falls, ends with
// `edges`), or -1. An empty one is wrong at position 0.
std::int64_t first_wrong_offset(std::span<const std::int64_t> indptr, std::int64_t edges);

// Throws DamagedArray, which names the row, unless `indptr` cuts so many edges into rows.
void check_rows(std::span<const std::int64_t> indptr, std::int64_t edges);

// Throws std::invalid_argument, which names the position, unless `offsets` cut so many entries into rows.
void check_offsets(std::span<const std::int64_t> offsets, std::int64_t entries, const char* name);

// Throws std::invalid_argument, which names the first id that is not in [0, limit), and its position.
template <class Id>
void check_ids(std::span<const Id> ids, std::int64_t limit, const char* name, int threads);

// Throws std::invalid_argument unless an array has as many entries as are needed.
void check_size(std::size_t given, std::size_t wanted, const char* name);

}  // namespace khop
