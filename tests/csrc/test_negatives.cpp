#include "negatives.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "check.h"
#include "random.h"

namespace {

// One source and its partners; weights of all candidates, or none.
struct Case {
  std::vector<std::int64_t> weights;
  std::int64_t count = 0;
  std::vector<std::int32_t> partners;
  std::int64_t limit = 0;

  std::vector<std::int64_t> left() const {
    std::vector<std::int64_t> weight(static_cast<std::size_t>(count), 1);
    if (!weights.empty()) weight = weights;
    for (const auto partner : partners) weight[static_cast<std::size_t>(partner)] = 0;
    std::fill(weight.begin() + limit, weight.end(), 0);
    return weight;
  }
};

struct Answer {
  std::int64_t culprit;
  std::vector<std::int64_t> ranks;
};

Answer draw(const Case& of, std::int64_t position, std::int64_t per_positive) {
  std::vector<std::int64_t> before, partners_before;
  if (!of.weights.empty()) {
    before.resize(of.weights.size() + 1);
    std::partial_sum(of.weights.begin(), of.weights.end(), before.begin() + 1);
    std::int64_t sum = 0;
    for (const auto partner : of.partners) {
      partners_before.push_back(sum);
      sum += of.weights[static_cast<std::size_t>(partner)];
    }
  }
  const std::vector<std::int64_t> indptr{0, static_cast<std::int64_t>(of.partners.size())};
  const std::vector<std::int64_t> sources{0}, positions{position}, limits{of.limit};
  Answer answer{0, std::vector<std::int64_t>(static_cast<std::size_t>(per_positive))};
  answer.culprit = khop::draw_negatives<std::int32_t>({of.count, before}, {indptr, of.partners, partners_before},
                                                      {sources, positions, limits, per_positive, 5, 6}, answer.ranks.data());
  return answer;
}

// The specification: walk over the weights that are left.
std::vector<std::int64_t> expected(const Case& of, std::int64_t position, std::int64_t per_positive) {
  const auto left = of.left();
  const auto total = static_cast<std::uint64_t>(std::accumulate(left.begin(), left.end(), std::int64_t{0}));
  khop::RowWords words(5, static_cast<std::uint64_t>(position), 6);
  std::vector<std::int64_t> ranks;
  for (std::int64_t slot = 0; slot < per_positive; ++slot) {
    auto point = static_cast<std::int64_t>(words.below(total, total));
    std::int64_t rank = 0;
    for (; point >= left[static_cast<std::size_t>(rank)]; ++rank) point -= left[static_cast<std::size_t>(rank)];
    ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

TEST(negatives_are_the_specified_ones) {
  khop::RowWords words(1, 2, 3);
  for (int round = 0; round < 2000; ++round) {
    Case of;
    of.count = 1 + static_cast<std::int64_t>(words.below(12, 12));
    of.limit = static_cast<std::int64_t>(words.below(static_cast<std::uint64_t>(of.count) + 1, 13));
    const bool is_weighted = words.below(2, 2) == 1;
    for (std::int32_t rank = 0; rank < of.count; ++rank) {
      if (words.below(3, 3) == 0) of.partners.push_back(rank);
      if (is_weighted) of.weights.push_back(static_cast<std::int64_t>(words.below(4, 4)) << (round % 40));
    }
    const auto left = of.left();
    const Answer answer = draw(of, round, 5);
    if (std::ranges::all_of(left, [](std::int64_t weight) { return weight == 0; })) {
      CHECK_EQUAL(answer.culprit, 0);
    } else {
      CHECK_EQUAL(answer.culprit, -1);
      CHECK(answer.ranks == expected(of, round, 5));
    }
  }
}

TEST(without_partners_all_candidates_may_be_drawn) {
  const std::vector<std::int64_t> sources{7, 8}, positions{0, 1};
  std::vector<std::int64_t> ranks(200);
  const auto culprit = khop::draw_negatives<std::int64_t>({3, {}}, {}, {sources, positions, {}, 100, 5, 6}, ranks.data());
  CHECK_EQUAL(culprit, -1);
  CHECK_EQUAL(*std::ranges::min_element(ranks), 0);
  CHECK_EQUAL(*std::ranges::max_element(ranks), 2);
}
