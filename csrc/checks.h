// Checks of ids and offsets before kernels use them.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace khop {

// Invalid content in an array of a graph. `array` is its name in a graph folder, such as "indptr"; the message names the row.
struct DamagedArray : std::invalid_argument {
  DamagedArray(const char* name, const std::string& problem) : std::invalid_argument(problem), array(name) {}
  const char* array;
};

// The first position with an id outside [0, limit), or -1. For a limit of at most 0, all ids are outside.
template <class Id>
std::int64_t first_outside(std::span<const Id> ids, std::int64_t limit, int threads);

// The first invalid position of an indptr of `edges` edges (it must begin with 0, never fall and end with `edges`), or -1. An
// empty indptr is invalid at position 0.
std::int64_t first_wrong_offset(std::span<const std::int64_t> indptr, std::int64_t edges);

// Throws DamagedArray, which names the row, unless `indptr` splits `edges` edges into rows.
void check_rows(std::span<const std::int64_t> indptr, std::int64_t edges);

// Throws std::invalid_argument, which names the position, unless `offsets` split all entries into rows.
void check_offsets(std::span<const std::int64_t> offsets, std::int64_t entries, const char* name);

// Throws std::invalid_argument for an id outside [0, limit); names the first one and its position.
template <class Id>
void check_ids(std::span<const Id> ids, std::int64_t limit, const char* name, int threads);

// Throws std::invalid_argument unless an array has the required number of entries.
void check_size(std::size_t given, std::size_t wanted, const char* name);

}  // namespace khop
