// What has to hold of ids before a kernel follows them.
#pragma once

#include <cstdint>
#include <span>

namespace khop {

// The first position whose id is not in [0, limit), or -1.
template <class Id>
std::int64_t first_outside(std::span<const Id> ids, std::int64_t limit, int threads);

// The first position of an indptr that is not what the rows of `edges` edges ask for (it begins with 0, never falls, ends with
// `edges`), or -1.
std::int64_t first_wrong_offset(std::span<const std::int64_t> indptr, std::int64_t edges);

}  // namespace khop
