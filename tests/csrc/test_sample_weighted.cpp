#include "sample_weighted.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "checks.h"
#include "graphs.h"
#include "levels.h"
#include "outlines.h"
#include "random.h"
#include "weight_sums.h"

namespace {

using khop::HopRequest;
using khop::Replacement;
using khop::testing::Rows;

std::vector<std::int64_t> many_degrees() {
  std::vector<std::int64_t> degrees(200);
  for (std::size_t i = 0; i < degrees.size(); ++i) degrees[i] = static_cast<std::int64_t>(i * i % 139);
  return degrees;
}

// Every third is zero; in some rows they fall by powers, so that repeats run out.
std::vector<double> weights_of(const Rows<std::int32_t>& graph) {
  std::vector<double> weights(graph.indices.size());
  for (std::size_t row = 0; row + 1 < graph.indptr.size(); ++row) {
    double weight = 1;
    for (auto e = static_cast<std::size_t>(graph.indptr[row]); e < static_cast<std::size_t>(graph.indptr[row + 1]); ++e) {
      weight *= row % 2 == 0 ? 0.125 : 1;
      weights[e] = e % 3 == 0 ? 0 : weight;
    }
  }
  return weights;
}

// The specification, one draw at a time, over the whole weights of one row.
std::vector<std::int64_t> expected_edges(std::vector<std::int64_t> whole, std::int64_t begin, std::int64_t node,
                                         const HopRequest& request) {
  std::vector<std::int64_t> edges;
  const auto degree = static_cast<std::int64_t>(whole.size());
  const auto total = [&] {
    std::int64_t sum = 0;
    for (const std::int64_t weight : whole) sum += weight;
    return sum;
  };
  const bool without = request.replacement == Replacement::without;
  if (request.fanout < 0 || (without && degree <= request.fanout)) {
    for (std::int64_t at = 0; at < degree; ++at) {
      if (whole[static_cast<std::size_t>(at)] > 0) edges.push_back(begin + at);
    }
    return edges;
  }
  khop::RowWords words(request.key, static_cast<std::uint64_t>(node), request.stream);
  for (int repeats = 0; static_cast<std::int64_t>(edges.size()) < request.fanout && total() > 0;) {
    auto height = static_cast<std::int64_t>(khop::RowWords::high_product(words.wide(), static_cast<std::uint64_t>(total())));
    std::size_t at = 0;
    while (height >= whole[at]) height -= whole[at++];
    const std::int64_t edge = begin + static_cast<std::int64_t>(at);
    if (without && std::ranges::find(edges, edge) != edges.end()) {
      if (++repeats < 64) continue;
      for (const std::int64_t picked : edges) whole[static_cast<std::size_t>(picked - begin)] = 0;
      continue;
    }
    edges.push_back(edge);
    if (without && repeats >= 64) whole[at] = 0;
  }
  return edges;
}

}  // namespace

TEST(every_weighted_pick_is_what_the_specification_says) {
  const Rows<std::int32_t> graph(many_degrees());
  const std::vector<double> weights = weights_of(graph);
  std::vector<std::int64_t> sums(weights.size()), nodes;
  CHECK_EQUAL(khop::weight_sums(graph.indptr, std::span<const double>(weights), sums.data(), 2), std::int64_t{-1});
  const std::vector<std::int16_t> outline = khop::testing::outline_of(graph.indptr, sums);
  for (std::int64_t i = 0; i < 400; ++i) nodes.push_back(i * 7 % 200);
  for (const std::int64_t fanout : {-1, 0, 1, 5, 31, 33, 64, 65, 100}) {
    for (const Replacement replacement : {Replacement::without, Replacement::with}) {
      HopRequest request{nodes, {}, {}, fanout, replacement, 0x9876543210fedcba, 77};
      std::vector<std::int64_t> expected, expected_offsets{0};
      for (const std::int64_t node : nodes) {
        const auto row = static_cast<std::size_t>(node);
        const std::int64_t begin = graph.indptr[row], end = graph.indptr[row + 1];
        std::vector<std::int64_t> whole;
        for (auto e = static_cast<std::size_t>(begin); e < static_cast<std::size_t>(end); ++e) {
          whole.push_back(sums[e] - (whole.empty() ? 0 : sums[e - 1]));
        }
        const std::vector<std::int64_t> of_row = expected_edges(whole, begin, node, request);
        expected.insert(expected.end(), of_row.begin(), of_row.end());
        expected_offsets.push_back(static_cast<std::int64_t>(expected.size()));
      }
      khop::testing::at_every_level([&] {
        for (const int threads : {1, 3}) {
          request.threads = threads;
          const auto capacity = static_cast<std::size_t>(edge_capacity(graph.csc(), request));
          std::vector<std::int32_t> drawn(capacity);
          std::vector<std::int64_t> offsets(nodes.size() + 1), edges(capacity);
          const auto count = khop::sample_weighted(
              graph.csc(), {sums, outline}, request, khop::HopOutput<std::int32_t>{offsets.data(), drawn.data(), edges.data()});
          edges.resize(static_cast<std::size_t>(count));
          CHECK(offsets == expected_offsets);
          CHECK(edges == expected);
        }
      });
    }
  }
}

TEST(the_first_bad_weight_is_found) {
  const std::vector<std::int64_t> indptr{0, 2, 4};
  const std::vector<float> weights{1, 0, -1, 2};
  std::int64_t sums[4];
  CHECK_EQUAL(khop::weight_sums(indptr, std::span<const float>(weights), sums, 1), std::int64_t{2});
}

TEST(sums_that_do_not_fit_the_edges_are_refused) {
  const Rows<std::int32_t> graph({2});
  const std::vector<std::int64_t> sums{1}, nodes{0};
  std::int64_t offsets[2];
  std::int32_t drawn[2];
  const HopRequest request{nodes, {}, {}, 1, Replacement::without, 1, 2, 1};
  CHECK_THROWS(std::invalid_argument,
               khop::sample_weighted(graph.csc(), {sums, {}}, request, khop::HopOutput<std::int32_t>{offsets, drawn, nullptr}));
}

TEST(damaged_sums_and_outlines_end_in_an_error_or_in_edges_of_the_row) {
  const Rows<std::int64_t> graph({40, 7, 0, 90});
  std::vector<std::int64_t> sound;
  for (const std::int64_t degree : {40, 7, 90}) {
    for (std::int64_t at = 1; at <= degree; ++at) sound.push_back(at << 20);
  }
  const std::vector<std::int64_t> nodes{0, 1, 2, 3, 3};
  for (std::uint64_t round = 0; round < 200; ++round) {
    std::vector<std::int64_t> sums = sound;
    std::vector<std::int16_t> outline = khop::testing::outline_of(graph.indptr, sums);
    const std::uint64_t mixed = khop::mix64(round);
    (round % 2 == 0 ? sums[mixed % sums.size()] : sums[0]) ^= std::int64_t{1} << (mixed >> 58);
    outline[mixed % outline.size()] = static_cast<std::int16_t>(mixed >> 48);
    for (const std::int64_t fanout : {3, 20, 100}) {
      const HopRequest request{nodes, {}, {}, fanout, round % 3 == 0 ? Replacement::with : Replacement::without, mixed, 2, 1};
      std::vector<std::int64_t> offsets(nodes.size() + 1), edges(1000), drawn(1000);
      try {
        khop::sample_weighted(graph.csc(), {sums, outline}, request, khop::HopOutput<std::int64_t>{offsets.data(), drawn.data(), edges.data()});
      } catch (const khop::DamagedArray&) {
        continue;
      }
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        const auto row = static_cast<std::size_t>(nodes[i]);
        for (std::int64_t e = offsets[i]; e < offsets[i + 1]; ++e) {
          const std::int64_t edge = edges[static_cast<std::size_t>(e)];
          CHECK(graph.indptr[row] <= edge && edge < graph.indptr[row + 1]);
        }
      }
    }
  }
}
