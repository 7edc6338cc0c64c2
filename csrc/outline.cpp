#include "outline.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "checks.h"
#include "parallel.h"

namespace khop {

std::int64_t outline_size(std::int64_t edges, std::int64_t rows) {
  constexpr std::int64_t most = std::int64_t{1} << 56;
  if (edges < 0 || rows < 0 || edges > most || rows > most) {
    throw std::invalid_argument("an outline of " + std::to_string(edges) + " edges in " + std::to_string(rows) +
                                " rows: must be from 0 to 2^56");
  }
  const std::int64_t codes = edges + kOutlineHead * rows;
  return (codes + kOutlineWindow - 1) / kOutlineWindow * kOutlineWindow;
}

void make_outline(std::span<const std::int64_t> indptr, std::span<const std::int64_t> values, std::int16_t* outline, int threads) {
  check_rows(indptr, static_cast<std::int64_t>(values.size()));
  const auto rows = static_cast<std::int64_t>(indptr.size()) - 1;
  parallel_for(threads, rows, 4096, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t begin = indptr.data()[r], end = indptr.data()[r + 1];
      const std::int64_t ends[2] = {begin < end ? values.data()[begin] : 0, begin < end ? values.data()[end - 1] : 0};
      const OutlinedRow row = outlined(ends[0], ends[1], r);
      std::memcpy(outline + begin + kOutlineHead * r, ends, sizeof ends);
      for (std::int64_t at = begin; at < end; ++at) outline[at + row.skip] = row.code_of(values.data()[at]);
    }
  });
  const std::int64_t used = static_cast<std::int64_t>(values.size()) + kOutlineHead * rows;
  std::fill(outline + used, outline + outline_size(static_cast<std::int64_t>(values.size()), rows), std::int16_t{0});
}

void check_rising(const Rising& rising, std::int64_t edges, std::int64_t rows, const char* name) {
  if (static_cast<std::int64_t>(rising.values.size()) != edges) {
    throw std::invalid_argument(std::string(name) + ": one per edge is needed");
  }
  if (static_cast<std::int64_t>(rising.outline.size()) != outline_size(edges, rows)) {
    throw std::invalid_argument(std::string(name) + ": their outline is one of another graph");
  }
}

}  // namespace khop
