#include "known_edges.h"

#include <stdexcept>
#include <vector>

#include "check.h"

namespace {

// Rows {4, 9, 3}, {}, {8, 4}, with edges 10, 11, ...
template <class Id>
void check_rows(khop::NodeIndex& index) {
  const std::vector<std::int64_t> known{3, 8, 5};
  std::vector<std::int32_t> ignored(known.size());
  index.insert(std::span<const std::int64_t>(known), ignored.data());
  const std::vector<std::int64_t> offsets{0, 3, 3, 5}, edges{10, 11, 12, 13, 14};
  const std::vector<Id> nodes{4, 9, 3, 8, 4};
  std::vector<std::int64_t> kept_offsets(4), kept_edges(5);
  std::vector<std::int32_t> local(5);
  const std::size_t count =
      khop::known_edges<Id>(index, {offsets, nodes, edges}, {kept_offsets.data(), local.data(), kept_edges.data()});
  CHECK_EQUAL(count, std::size_t{2});
  CHECK_EQUAL(kept_offsets[1], 1);
  CHECK_EQUAL(kept_offsets[2], 1);
  CHECK_EQUAL(kept_offsets[3], 2);
  CHECK_EQUAL(local[0], 0);
  CHECK_EQUAL(local[1], 1);
  CHECK_EQUAL(kept_edges[0], 12);
  CHECK_EQUAL(kept_edges[1], 13);
}

}  // namespace

TEST(edges_from_known_nodes_are_kept_in_their_rows) {
  for (const std::int64_t num_nodes : {std::int64_t{10}, khop::NodeIndex::kDenseNodes + 1, std::int64_t{1} << 40}) {
    khop::NodeIndex narrow(num_nodes), wide(num_nodes);
    check_rows<std::int32_t>(narrow);
    check_rows<std::int64_t>(wide);
  }
}

TEST(a_node_of_the_batch_before_is_not_known) {
  khop::NodeIndex index(10);
  const std::vector<std::int64_t> before{4, 9};
  std::vector<std::int32_t> ignored(before.size());
  index.insert(std::span<const std::int64_t>(before), ignored.data());
  index.clear();
  check_rows<std::int64_t>(index);
}

TEST(a_source_outside_the_graph_is_refused) {
  const khop::NodeIndex index(10);
  const std::vector<std::int64_t> ids{3, 10};
  std::vector<std::int32_t> local(2);
  CHECK_THROWS(std::invalid_argument, index.find(std::span<const std::int64_t>(ids), local.data()));
}
