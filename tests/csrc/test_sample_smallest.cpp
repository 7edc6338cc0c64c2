#include "sample_smallest.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.h"
#include "graphs.h"
#include "levels.h"
#include "random.h"

namespace {

using khop::HopRequest;
using khop::Replacement;
using khop::testing::Rows;

std::vector<std::int64_t> many_degrees() {
  std::vector<std::int64_t> degrees(300);
  for (std::size_t i = 0; i < degrees.size(); ++i) degrees[i] = static_cast<std::int64_t>(i * i % 177);
  return degrees;
}

// The specification of one row without parallel edges: positions of the smallest keys, in row order.
std::vector<std::int64_t> expected_edges(const std::vector<std::uint64_t>& keys, std::int64_t begin, std::int64_t fanout) {
  std::vector<std::pair<std::uint64_t, std::int64_t>> all;
  for (std::size_t at = 0; at < keys.size(); ++at) all.emplace_back(keys[at], begin + static_cast<std::int64_t>(at));
  if (fanout >= 0 && static_cast<std::int64_t>(all.size()) > fanout) {
    std::ranges::sort(all);
    all.resize(static_cast<std::size_t>(fanout));
  }
  std::vector<std::int64_t> edges;
  for (const auto& [key, edge] : all) edges.push_back(edge);
  std::ranges::sort(edges);
  return edges;
}

}  // namespace

TEST(every_level_and_number_of_threads_takes_the_smallest_keys) {
  Rows<std::int32_t> graph(many_degrees());
  for (std::size_t edge = 0; edge < graph.indices.size(); ++edge) graph.indices[edge] = static_cast<std::int32_t>(edge * 7919 % 1000003);
  std::vector<std::int64_t> nodes;
  for (std::int64_t i = 0; i < 900; ++i) nodes.push_back(i * 17 % 300);
  for (const std::int64_t fanout : {-1, 0, 1, 7, 40, 100}) {
    std::vector<std::int64_t> expected, expected_offsets{0};
    for (const std::int64_t node : nodes) {
      const auto row = static_cast<std::size_t>(node);
      std::vector<std::uint64_t> of_row;
      for (std::int64_t e = graph.indptr[row]; e < graph.indptr[row + 1]; ++e) {
        of_row.push_back(khop::mix64(11 ^ static_cast<std::uint64_t>(graph.indices[static_cast<std::size_t>(e)])));
      }
      const std::vector<std::int64_t> taken = expected_edges(of_row, graph.indptr[row], fanout);
      expected.insert(expected.end(), taken.begin(), taken.end());
      expected_offsets.push_back(static_cast<std::int64_t>(expected.size()));
    }
    khop::testing::at_every_level([&] {
      for (const int threads : {1, 3}) {
        const HopRequest request{nodes, {}, {}, fanout, Replacement::without, 0, 0, threads};
        const khop::KeysOfSources<std::int32_t> keys{{11, 22, 1, 1}, {}, {}};
        const std::int64_t room = khop::edge_capacity(graph.csc(), request);
        std::vector<std::int64_t> offsets(nodes.size() + 1), edges(static_cast<std::size_t>(room));
        std::vector<std::int32_t> drawn(static_cast<std::size_t>(room));
        const khop::HopOutput<std::int32_t> output{offsets.data(), drawn.data(), edges.data()};
        const std::int64_t count = khop::sample_smallest(graph.csc(), keys, request, output);
        edges.resize(static_cast<std::size_t>(count));
        CHECK(offsets == expected_offsets);
        CHECK(edges == expected);
      }
    });
  }
}

TEST(equal_keys_are_taken_in_row_order) {
  const Rows<std::int64_t> graph({60});
  const std::vector<std::int64_t> nodes{0}, keys(60, -5);
  for (const std::int64_t fanout : {3, 50}) {
    const HopRequest request{nodes, {}, {}, fanout, Replacement::without, 0, 0, 1};
    std::vector<std::int64_t> offsets(2), drawn(60), edges(60);
    const khop::HopOutput<std::int64_t> output{offsets.data(), drawn.data(), edges.data()};
    CHECK_EQUAL(khop::sample_smallest(graph.csc(), khop::KeysOfEdges{keys}, request, output), fanout);
    for (std::int64_t slot = 0; slot < fanout; ++slot) CHECK_EQUAL(edges[static_cast<std::size_t>(slot)], slot);
  }
}

TEST(keys_that_do_not_fit_the_edges_are_refused) {
  const Rows<std::int64_t> graph({3});
  const std::vector<std::int64_t> nodes{0}, keys{1, 2};
  std::int64_t offsets[2], drawn[3];
  const HopRequest request{nodes, {}, {}, 1, Replacement::without, 0, 0, 1};
  CHECK_THROWS(std::invalid_argument, khop::sample_smallest(graph.csc(), khop::KeysOfEdges{keys}, request,
                                                            khop::HopOutput<std::int64_t>{offsets, drawn, nullptr}));
}
