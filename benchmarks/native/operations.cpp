#include <algorithm>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "benchmark.h"
#include "build_csc.h"
#include "gather.h"
#include "measured.h"
#include "node_index.h"
#include "outline.h"
#include "random.h"
#include "sample_hop.h"
#include "segment.h"
#include "time_ranges.h"
#include "tree_index.h"

namespace khop::benchmark {
namespace {

constexpr std::int64_t kNodes = 20'000, kEdges = 400'000, kRows = 2'000, kWidth = 100, kFanout = 10;

// `count` ids below `limit`, the smaller ones more often.
std::vector<std::int64_t> skewed_ids(std::size_t count, std::int64_t limit, std::uint64_t key) {
  std::vector<std::int64_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Words words = philox(key, {static_cast<std::uint32_t>(i), 0, 0, 0});
    const auto below = [limit](std::uint64_t word) { return static_cast<std::int64_t>((word * static_cast<std::uint64_t>(limit)) >> 32); };
    ids[i] = std::min(below(words[0]), below(words[1]));
  }
  return ids;
}

// A fixed graph of 20,000 nodes and 400,000 edges, by destination.
struct Graph {
  Graph() : sources(skewed_ids(kEdges, kNodes, 1)), destinations(skewed_ids(kEdges, kNodes, 2)) { build(); }

  void build() { build_csc<std::int64_t, std::int32_t>({sources, destinations}, kNodes, indptr, indices, order, 1); }

  Csc<std::int32_t> csc() const { return {indptr, indices}; }

  std::vector<std::int64_t> sources, destinations;
  std::vector<std::int64_t> indptr = std::vector<std::int64_t>(kNodes + 1);
  std::vector<std::int32_t> indices = std::vector<std::int32_t>(kEdges);
  std::vector<std::int64_t> order = std::vector<std::int64_t>(kEdges);
};

// A frontier and room for what a hop draws from it.
struct Hop {
  explicit Hop(std::int64_t fanout_of_hop) : fanout(fanout_of_hop) {}

  std::int64_t draw() {
    const HopRequest request{frontier, {}, {}, fanout, Replacement::without, 7, 1, 1};
    neighbors.resize(static_cast<std::size_t>(edge_capacity(graph.csc(), request)));
    return sample_hop(graph.csc(), request, {offsets.data(), neighbors.data(), nullptr});
  }

  Graph graph;
  std::int64_t fanout;
  std::vector<std::int64_t> frontier = skewed_ids(kRows, kNodes, 3);
  std::vector<std::int64_t> offsets = std::vector<std::int64_t>(kRows + 1);
  std::vector<std::int32_t> neighbors = std::vector<std::int32_t>(kRows * kFanout);
};

void measure_sample_hop() {
  Hop hop(kFanout);
  khop_measured([&] { hop.draw(); });
}

void measure_node_index() {
  Hop hop(kFanout);
  const auto edges = static_cast<std::size_t>(hop.draw());
  NodeIndex index(kNodes);
  std::vector<std::int32_t> local(edges);
  std::vector<std::int64_t> nodes(edges);
  const auto number = [&] {
    index.insert(std::span<const std::int32_t>(hop.neighbors.data(), edges), local.data());
    index.copy_nodes(0, nodes.data());
    index.clear();
  };
  number();  // a warm index allocates nothing
  khop_measured(number);
}

void measure_tree_index() {
  Hop hop(kFanout);
  const auto edges = static_cast<std::size_t>(hop.draw());
  TreeIndex index(std::int64_t{1} << 23);  // a hash table, as of all but the smallest graphs
  std::vector<std::int32_t> local(edges);
  std::vector<std::int64_t> trees(kRows), nodes(edges), trees_of_nodes(edges);
  for (std::int64_t row = 0; row < kRows; ++row) trees[static_cast<std::size_t>(row)] = row / 4;
  const auto number = [&] {
    index.reset(kRows);
    index.insert(std::span<const std::int32_t>(hop.neighbors.data(), edges), hop.offsets, trees, local.data());
    index.copy_pairs(0, nodes.data(), trees_of_nodes.data());
  };
  number();
  khop_measured(number);
}

void measure_time_ranges() {
  Hop hop(kFanout);
  const std::vector<std::int64_t>& indptr = hop.graph.indptr;
  std::vector<std::int64_t> times = skewed_ids(kEdges, std::int64_t{1} << 32, 5);
  for (std::size_t row = 0; row < kNodes; ++row) std::sort(times.begin() + indptr[row], times.begin() + indptr[row + 1]);
  std::vector<std::int16_t> outline(static_cast<std::size_t>(outline_size(kEdges, kNodes)));
  make_outline(indptr, times, outline.data(), 1);
  const auto until = skewed_ids(kRows, std::int64_t{1} << 32, 6);
  std::vector<std::int64_t> ranges(2 * kRows);
  const EdgeTimes own{WholeNumbers(std::span<const std::int64_t>(times)), {}, {}};
  khop_measured([&] { time_ranges(indptr, {times, outline}, own, {hop.frontier, until}, ranges.data()); });
}

void measure_gather() {
  const std::vector<float> table(kNodes * kWidth, 1.0F);
  const auto ids = skewed_ids(kRows, kNodes, 4);
  std::vector<float> out(kRows * kWidth);
  const std::int64_t row_bytes = kWidth * static_cast<std::int64_t>(sizeof(float));
  const GatherColumn column{GatherColumn::Kind::bytes, {{table.data(), 0}}, row_bytes, nullptr, kRows, out.data()};
  khop_measured([&] { gather_columns(std::span(&column, 1), ids, 1); });
}

void measure_gather_int8() {
  const std::vector<std::int8_t> table(kNodes * kWidth, 3);
  const std::vector<float> scales(kWidth, 0.5F);
  const auto ids = skewed_ids(kRows, kNodes, 4);
  std::vector<float> out(kRows * kWidth);
  const GatherColumn column{GatherColumn::Kind::int8, {{table.data(), 0}}, kWidth, scales.data(), kRows, out.data()};
  khop_measured([&] { gather_columns(std::span(&column, 1), ids, 1); });
}

void measure_segment_mean() {
  Hop hop(kFanout);
  hop.draw();
  const std::vector<float> x(kNodes * kWidth, 1.0F);
  std::vector<float> out(kRows * kWidth);
  khop_measured([&] { segment_mean(x.data(), kWidth, Edges{hop.offsets, hop.neighbors}, out.data(), 1); });
}

void measure_build_csc() {
  Graph graph;
  khop_measured([&] { graph.build(); });
}

const std::map<std::string, void (*)()>& operations() {
  static const std::map<std::string, void (*)()> all = {
      {"sample_hop", measure_sample_hop},   {"node_index", measure_node_index},     {"gather", measure_gather},
      {"gather_int8", measure_gather_int8}, {"segment_mean", measure_segment_mean}, {"build_csc", measure_build_csc},
      {"tree_index", measure_tree_index},   {"time_ranges", measure_time_ranges},
  };
  return all;
}

}  // namespace

bool run_operation(const char* name) {
  const auto found = operations().find(name);
  if (found == operations().end()) return false;
  found->second();
  return true;
}

void list_operations() {
  for (const auto& [name, run] : operations()) std::puts(name.c_str());
}

}  // namespace khop::benchmark
