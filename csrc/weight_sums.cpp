#include "weight_sums.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "checks.h"
#include "parallel.h"

namespace khop {
namespace {

constexpr std::int64_t kMostEdges = std::int64_t{1} << 31;
constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

// One row: the largest weight is scaled to 32 bits, the others by the same factor, rounded down, but at least to 1 unless they
// are 0.
template <class Weight>
void row_sums(std::span<const Weight> weights, double largest, std::int64_t* sums) {
  int exponent = 0;
  std::frexp(largest, &exponent);
  std::int64_t sum = 0;
  for (std::size_t e = 0; e < weights.size(); ++e) {
    const auto weight = static_cast<double>(weights[e]);
    const auto whole = static_cast<std::int64_t>(std::ldexp(weight, 32 - exponent));
    sum += weight > 0 ? std::max<std::int64_t>(whole, 1) : 0;
    sums[e] = sum;
  }
}

}  // namespace

template <class Weight>
std::int64_t weight_sums(std::span<const std::int64_t> indptr, std::span<const Weight> weights, std::int64_t* sums, int threads) {
  check_rows(indptr, static_cast<std::int64_t>(weights.size()));
  std::atomic<std::int64_t> first_bad = kNone;
  parallel_for(threads, static_cast<std::int64_t>(indptr.size()) - 1, 4096, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t begin = indptr[static_cast<std::size_t>(row)], end = indptr[static_cast<std::size_t>(row) + 1];
      if (end - begin >= kMostEdges) {
        throw std::invalid_argument("row " + std::to_string(row) + " has 2^31 edges or more: too many for weights");
      }
      const auto of_row = weights.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
      double largest = 0;
      for (std::size_t e = 0; e < of_row.size(); ++e) {
        const auto weight = static_cast<double>(of_row[e]);
        if (weight >= 0 && weight <= std::numeric_limits<double>::max()) {
          largest = std::max(largest, weight);
          continue;
        }
        const std::int64_t found = begin + static_cast<std::int64_t>(e);
        for (std::int64_t seen = first_bad; found < seen && !first_bad.compare_exchange_weak(seen, found);) {
        }
        return;
      }
      row_sums(of_row, largest, sums + begin);
    }
  });
  return first_bad == kNone ? -1 : first_bad.load();
}

template std::int64_t weight_sums(std::span<const std::int64_t>, std::span<const float>, std::int64_t*, int);
template std::int64_t weight_sums(std::span<const std::int64_t>, std::span<const double>, std::int64_t*, int);

}  // namespace khop
