#include "sample_hop.h"

#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "checks.h"
#include "graphs.h"
#include "levels.h"
#include "random.h"

namespace {

using khop::HopRequest;
using khop::Replacement;
using khop::testing::Rows;

struct Drawn {
  std::vector<std::int64_t> offsets, nodes, edges;
  friend bool operator==(const Drawn&, const Drawn&) = default;
};

// Memory is exactly as large as it has to be, for AddressSanitizer to see any step too far.
template <class Index>
Drawn sample(const Rows<Index>& graph, const HopRequest& request) {
  const auto capacity = static_cast<std::size_t>(edge_capacity(graph.csc(), request));
  std::vector<Index> nodes(capacity);
  Drawn drawn{std::vector<std::int64_t>(request.nodes.size() + 1), {}, std::vector<std::int64_t>(capacity)};
  const std::int64_t count =
      sample_hop(graph.csc(), request, khop::HopOutput<Index>{drawn.offsets.data(), nodes.data(), drawn.edges.data()});
  drawn.nodes.assign(nodes.begin(), nodes.begin() + count);
  drawn.edges.resize(static_cast<std::size_t>(count));
  return drawn;
}

// The specification, one word at a time.
std::vector<std::int64_t> expected_edges(std::int64_t begin, std::int64_t degree, std::int64_t node, const HopRequest& request) {
  khop::RowWords words(request.key, static_cast<std::uint64_t>(node), request.stream);
  const auto range = static_cast<std::uint64_t>(degree);
  std::vector<std::int64_t> edges;
  std::set<std::int64_t> taken;
  const bool repeated = request.replacement == Replacement::with && request.fanout >= 0 && degree > 0;
  if (!repeated && (request.fanout < 0 || degree <= request.fanout)) {
    for (std::int64_t at = 0; at < degree; ++at) edges.push_back(begin + at);
    return edges;
  }
  for (std::int64_t slot = 0; slot < request.fanout; ++slot) {
    const std::int64_t last = degree - request.fanout + slot;
    auto pick = static_cast<std::int64_t>(words.below(repeated ? range : static_cast<std::uint64_t>(last) + 1, range));
    if (!repeated && !taken.insert(pick).second) taken.insert(pick = last);
    edges.push_back(begin + pick);
  }
  return edges;
}

template <class Index>
Drawn specified(const Rows<Index>& graph, const HopRequest& request) {
  Drawn drawn{{0}, {}, {}};
  for (const std::int64_t node : request.nodes) {
    const std::int64_t begin = graph.indptr[static_cast<std::size_t>(node)];
    const std::int64_t degree = graph.indptr[static_cast<std::size_t>(node) + 1] - begin;
    for (const std::int64_t edge : expected_edges(begin, degree, node, request)) {
      drawn.edges.push_back(edge);
      drawn.nodes.push_back(graph.indices[static_cast<std::size_t>(edge)]);
    }
    drawn.offsets.push_back(static_cast<std::int64_t>(drawn.edges.size()));
  }
  return drawn;
}

// 0, 1, 2, ... twice over, out of order.
std::vector<std::int64_t> shuffled_frontier(std::size_t rows) {
  std::vector<std::int64_t> nodes;
  for (std::size_t i = 0; i < 2 * rows; ++i) nodes.push_back(static_cast<std::int64_t>(i * 7 % rows));
  return nodes;
}

std::vector<std::int64_t> many_degrees() {
  std::vector<std::int64_t> degrees(400);
  for (std::size_t i = 0; i < degrees.size(); ++i) degrees[i] = static_cast<std::int64_t>(i * i % 139);
  return degrees;
}

template <class Index>
void check_every_request() {
  const Rows<Index> graph(many_degrees());
  const auto nodes = shuffled_frontier(many_degrees().size());
  for (const std::int64_t fanout : {-1, 0, 1, 4, 5, 15, 63, 64, 65, 100, 200}) {
    for (const Replacement replacement : {Replacement::without, Replacement::with}) {
      HopRequest request{nodes, {}, {}, fanout, replacement, 0x9876543210fedcba, 77};
      const Drawn expected = specified(graph, request);
      khop::testing::at_every_level([&] {
        for (const int threads : {1, 3}) {
          request.threads = threads;
          CHECK(sample(graph, request) == expected);
        }
      });
    }
  }
}

}  // namespace

TEST(every_pick_is_what_the_specification_says) {
  check_every_request<std::int32_t>();
  check_every_request<std::int64_t>();
}

TEST(rows_on_both_sides_of_the_wide_degree) {
  const auto wide = static_cast<std::int64_t>(khop::kWideDegree);
  const Rows<std::int32_t> graph({wide - 1, wide, wide + 1, 3});
  const std::vector<std::int64_t> nodes{0, 1, 2, 3, 2, 1, 0};
  khop::testing::at_every_level([&] {
    for (const Replacement replacement : {Replacement::without, Replacement::with}) {
      for (const std::int64_t fanout : {9, 99}) {
        const HopRequest request{nodes, {}, {}, fanout, replacement, 3, 4};
        CHECK(sample(graph, request) == specified(graph, request));
      }
    }
  });
}

TEST(draws_are_keyed_by_original_id_and_tree) {
  const Rows<std::int32_t> graph({50, 50, 50});
  const std::vector<std::int64_t> nodes{0, 1, 2}, original{1, std::int64_t{1} << 40, 0}, trees{5, 5, 6};
  const Drawn drawn = sample(graph, {nodes, original, trees, 7, Replacement::without, 11, 12, 1});
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const HopRequest request{nodes, {}, {}, 7, Replacement::without, khop::tree_key(11, static_cast<std::uint64_t>(trees[i])), 12, 1};
    const std::vector<std::int64_t> edges(drawn.edges.begin() + drawn.offsets[i], drawn.edges.begin() + drawn.offsets[i + 1]);
    CHECK(edges == expected_edges(graph.indptr[i], 50, original[i], request));
  }
}

TEST(an_empty_frontier_draws_nothing) {
  const Rows<std::int32_t> graph({2, 3});
  const Drawn drawn = sample(graph, {{}, {}, {}, 4, Replacement::without, 1, 2, 8});
  CHECK(drawn.offsets == std::vector<std::int64_t>{0});
  CHECK(drawn.edges.empty());
}

TEST(a_node_that_is_no_row_is_refused) {
  const Rows<std::int32_t> graph({2, 3});
  for (const std::int64_t node : {std::int64_t{2}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    const std::vector<std::int64_t> nodes{0, node};
    CHECK_THROWS(std::invalid_argument, edge_capacity(graph.csc(), {nodes, {}, {}, 4, Replacement::without, 1, 2, 1}));
  }
}

TEST(damaged_row_pointers_are_refused) {
  for (const std::vector<std::int64_t>& indptr : {std::vector<std::int64_t>{0, 3, 1}, {0, 1, 4}, {-1, 1, 3}}) {
    Rows<std::int64_t> graph({2, 1});
    graph.indptr = indptr;
    const std::vector<std::int64_t> nodes{0, 1};
    for (const std::int64_t fanout : {-1, 2}) {
      CHECK_THROWS(std::invalid_argument, sample(graph, {nodes, {}, {}, fanout, Replacement::without, 1, 2, 1}));
    }
  }
}

TEST(a_source_that_is_no_node_is_named_with_its_row) {
  const std::vector<std::int64_t> nodes{7, 3}, offsets{0, 2, 3};
  const std::vector<std::int32_t> sources{0, 4, 9};
  const HopRequest request{nodes, {}, {}, 2, Replacement::without, 1, 2, 1};
  khop::check_sources<std::int32_t>(request, offsets.data(), sources, 10);
  try {
    khop::check_sources<std::int32_t>(request, offsets.data(), sources, 9);
    CHECK(false);
  } catch (const khop::DamagedArray& damage) {
    CHECK_EQUAL(std::string(damage.what()), std::string("row 3 has source id 9: must be in [0, 9)"));
  }
}
