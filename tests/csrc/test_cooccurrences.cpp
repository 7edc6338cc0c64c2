#include "cooccurrences.h"

#include <cstdint>
#include <map>
#include <vector>

#include "check.h"

namespace {

template <class Index>
struct Rows {
  std::vector<std::int64_t> indptr{0};
  std::vector<Index> indices;

  explicit Rows(const std::vector<std::vector<Index>>& rows) {
    for (const auto& row : rows) {
      indices.insert(indices.end(), row.begin(), row.end());
      indptr.push_back(static_cast<std::int64_t>(indices.size()));
    }
  }
  khop::Csc<Index> csc() const { return {indptr, indices}; }
};

template <class Index>
struct Found {
  std::vector<std::int64_t> indptr;
  std::vector<Index> indices;
  std::vector<std::int32_t> counts;

  Found(const Rows<Index>& there, const Rows<Index>& back, std::int64_t min_count, int threads) : indptr(there.indptr.size()) {
    khop::Cooccurrences<Index> found(there.csc(), back.csc(), min_count, threads);
    indices.resize(static_cast<std::size_t>(found.num_pairs()));
    counts.resize(indices.size());
    found.move_into(indptr, indices.data(), counts.data());
  }
};

// What `ends` nodes do with `middles` others, some of them more than once.
template <class Index>
std::vector<std::vector<Index>> entries(std::uint64_t ends, std::uint64_t middles, std::uint64_t edges) {
  std::vector<std::vector<Index>> rows(ends);
  for (std::uint64_t edge = 0; edge < edges; ++edge) {
    rows[edge * edge * 7 % ends].push_back(static_cast<Index>(edge * 13 % middles));
  }
  return rows;
}

template <class Index>
std::vector<std::vector<Index>> transposed(const std::vector<std::vector<Index>>& rows, std::size_t count) {
  std::vector<std::vector<Index>> others(count);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (const Index other : rows[row]) others[static_cast<std::size_t>(other)].push_back(static_cast<Index>(row));
  }
  return others;
}

template <class Index>
void counts_every_way(std::uint64_t ends, std::uint64_t middles, std::uint64_t edges, std::int64_t min_count) {
  const auto rows = entries<Index>(ends, middles, edges);
  const auto others = transposed(rows, middles);
  for (const int threads : {1, 2, 5}) {
    const Found<Index> found(Rows<Index>(rows), Rows<Index>(others), min_count, threads);
    std::size_t at = 0;
    for (std::size_t row = 0; row < ends; ++row) {
      std::map<Index, std::int32_t> ways;
      for (const Index middle : rows[row]) {
        for (const Index end : others[static_cast<std::size_t>(middle)]) ++ways[end];
      }
      CHECK_EQUAL(found.indptr[row], static_cast<std::int64_t>(at));
      for (const auto& [end, count] : ways) {
        if (count < min_count || end == static_cast<Index>(row)) continue;
        CHECK_EQUAL(found.indices[at], end);
        CHECK_EQUAL(found.counts[at], count);
        ++at;
      }
    }
    CHECK_EQUAL(found.indptr[ends], static_cast<std::int64_t>(at));
    CHECK_EQUAL(found.indices.size(), at);
  }
}

}  // namespace

TEST(pairs_are_those_of_the_product_on_any_number_of_threads) {
  for (const std::int64_t min_count : {1, 2, 3, 100}) {
    counts_every_way<std::int32_t>(1, 1, 5, min_count);
    counts_every_way<std::int32_t>(50, 20, 600, min_count);
    counts_every_way<std::int64_t>(50, 20, 600, min_count);
    counts_every_way<std::int32_t>(3000, 5000, 40'000, min_count);
  }
}

TEST(graphs_without_rows_or_edges_have_no_pairs) {
  using Entries = std::vector<std::vector<std::int32_t>>;
  const Rows<std::int32_t> nobody(Entries{}), one(Entries(1)), two(Entries(2));
  CHECK_EQUAL(Found<std::int32_t>(nobody, nobody, 1, 2).indptr.size(), 1u);
  CHECK_EQUAL(Found<std::int32_t>(two, one, 1, 2).indices.size(), 0u);
}
