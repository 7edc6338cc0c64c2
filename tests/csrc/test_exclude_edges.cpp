#include "exclude_edges.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "check.h"
#include "random.h"

namespace {

using Pair = std::pair<std::int64_t, std::int64_t>;

struct Kept {
  std::vector<std::int64_t> offsets, sources, ids;
  friend bool operator==(const Kept&, const Kept&) = default;
};

// Rows of one length; memory exactly as large as it has to be, for AddressSanitizer to see any step too far.
template <class Index>
struct Drawn {
  std::vector<std::int64_t> rows, offsets{0}, ids;
  std::vector<Index> sources;

  void add(std::int64_t row, const std::vector<Index>& of_row) {
    rows.push_back(row);
    sources.insert(sources.end(), of_row.begin(), of_row.end());
    offsets.push_back(static_cast<std::int64_t>(sources.size()));
    while (ids.size() < sources.size()) ids.push_back(1000 + static_cast<std::int64_t>(ids.size()));
  }

  Kept without(const std::vector<Pair>& pairs, bool with_ids) const {
    std::vector<std::int64_t> from, to;
    for (const auto& [source, destination] : pairs) {
      from.push_back(source);
      to.push_back(destination);
    }
    std::vector<Index> kept(sources.size());
    Kept left{std::vector<std::int64_t>(offsets.size()), {}, std::vector<std::int64_t>(with_ids ? sources.size() : 0)};
    const khop::DrawnEdges<Index> drawn{rows, offsets, sources, with_ids ? std::span(ids) : std::span<const std::int64_t>{}};
    const auto count = static_cast<std::size_t>(
        khop::exclude_edges(drawn, {from, to}, {left.offsets.data(), kept.data(), with_ids ? left.ids.data() : nullptr}));
    left.sources.assign(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(count));
    if (with_ids) left.ids.resize(count);
    return left;
  }

  Kept expected(const std::vector<Pair>& pairs, bool with_ids) const {
    const std::set<Pair> excluded(pairs.begin(), pairs.end());
    Kept left{{0}, {}, {}};
    for (std::size_t row = 0; row < rows.size(); ++row) {
      for (auto edge = offsets[row]; edge < offsets[row + 1]; ++edge) {
        const auto at = static_cast<std::size_t>(edge);
        if (excluded.contains({sources[at], rows[row]})) continue;
        left.sources.push_back(sources[at]);
        if (with_ids) left.ids.push_back(ids[at]);
      }
      left.offsets.push_back(static_cast<std::int64_t>(left.sources.size()));
    }
    return left;
  }
};

template <class Index>
void check_random(std::int64_t base) {
  khop::RowWords words(7, 7, 7);
  for (int round = 0; round < 200; ++round) {
    Drawn<Index> drawn;
    for (std::uint64_t row = 0; row < words.below(20, 20); ++row) {
      std::vector<Index> sources(words.below(6, 6));
      for (Index& source : sources) source = static_cast<Index>(base + static_cast<std::int64_t>(words.below(8, 8)));
      drawn.add(static_cast<std::int64_t>(words.below(8, 8)), sources);
    }
    std::vector<Pair> pairs(words.below(40, 40));
    for (auto& [source, destination] : pairs) {
      source = base + static_cast<std::int64_t>(words.below(8, 8));
      destination = static_cast<std::int64_t>(words.below(8, 8));
    }
    for (const bool with_ids : {false, true}) CHECK(drawn.without(pairs, with_ids) == drawn.expected(pairs, with_ids));
  }
}

}  // namespace

TEST(excluded_edges_go_and_the_others_keep_their_order) {
  check_random<std::int32_t>(0);
  check_random<std::int64_t>(std::int64_t{1} << 40);
}

TEST(of_no_rows_nothing_is_excluded) {
  const Drawn<std::int32_t> nothing;
  CHECK(nothing.without({}, true) == nothing.expected({}, true));
  CHECK(nothing.without({{1, 2}}, true) == nothing.expected({}, true));
}

TEST(many_pairs_of_one_destination_are_found) {
  Drawn<std::int32_t> drawn;
  std::vector<std::int32_t> sources(5000);
  for (std::size_t i = 0; i < sources.size(); ++i) sources[i] = static_cast<std::int32_t>(i);
  drawn.add(3, sources);
  std::vector<Pair> odd;
  for (std::int64_t source = 1; source < 5000; source += 2) odd.emplace_back(source, 3);
  CHECK(drawn.without(odd, true) == drawn.expected(odd, true));
}
