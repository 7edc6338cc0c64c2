// The outlines of rows, for the tests of what searches them.
#pragma once

#include <cstdint>
#include <vector>

#include "outline.h"

namespace khop::testing {

inline std::vector<std::int16_t> outline_of(const std::vector<std::int64_t>& indptr, const std::vector<std::int64_t>& values) {
  const auto edges = static_cast<std::int64_t>(values.size()), rows = static_cast<std::int64_t>(indptr.size()) - 1;
  std::vector<std::int16_t> outline(static_cast<std::size_t>(outline_size(edges, rows)));
  make_outline(indptr, values, outline.data(), 2);
  return outline;
}

}  // namespace khop::testing
