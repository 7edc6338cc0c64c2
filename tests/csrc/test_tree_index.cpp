#include "tree_index.h"

#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.h"
#include "random.h"

namespace {

// Rows of many lengths, one of which is longer than all that are worked off together, beside a map, batch after batch.
void check_batches(std::int64_t num_nodes) {
  khop::TreeIndex index(num_nodes);
  for (const std::int64_t num_trees : {std::int64_t{2}, std::int64_t{1000}, std::int64_t{3}}) {
    index.reset(num_trees);
    std::map<std::pair<std::int64_t, std::int64_t>, std::int32_t> expected;
    std::vector<std::int64_t> ids, offsets{0}, trees, trees_of_ids, nodes, trees_of_nodes;
    for (std::uint64_t row = 0; row < 400; ++row) {
      trees.push_back(static_cast<std::int64_t>(khop::mix64(row) % static_cast<std::uint64_t>(num_trees)));
      const std::uint64_t length = row == 200 ? 9000 : khop::mix64(row + 1000) % 25;
      for (std::uint64_t e = 0; e < length; ++e) {
        ids.push_back(static_cast<std::int64_t>(khop::mix64(row * 7 + e) % static_cast<std::uint64_t>(num_nodes) % 50));
      }
      trees_of_ids.resize(ids.size(), trees.back());
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
    std::vector<std::int32_t> local(ids.size());
    index.insert(std::span<const std::int64_t>(ids), offsets, trees, local.data());
    for (std::size_t e = 0; e < ids.size(); ++e) {
      const std::pair pair{trees_of_ids[e], ids[e]};
      const auto [found, is_new] = expected.try_emplace(pair, static_cast<std::int32_t>(expected.size()));
      CHECK_EQUAL(local[e], found->second);
      if (is_new) {
        nodes.push_back(pair.second);
        trees_of_nodes.push_back(pair.first);
      }
    }
    std::vector<std::int64_t> found_nodes(index.size()), found_trees(index.size());
    index.copy_pairs(0, found_nodes.data(), found_trees.data());
    CHECK(found_nodes == nodes);
    CHECK(found_trees == trees_of_nodes);
  }
}

}  // namespace

TEST(pairs_are_in_first_seen_order_whatever_the_table) {
  for (const std::int64_t num_nodes : {std::int64_t{1}, std::int64_t{4000}, std::int64_t{1} << 23, std::int64_t{1} << 40}) {
    check_batches(num_nodes);
  }
}

TEST(pairs_out_of_range_are_refused) {
  khop::TreeIndex index(5);
  index.reset(2);
  std::int32_t local[1];
  const auto insert = [&](std::int32_t id, std::int64_t tree, std::int64_t end) {
    const std::vector<std::int32_t> ids{id};
    const std::vector<std::int64_t> offsets{0, end}, trees{tree};
    index.insert(std::span<const std::int32_t>(ids), offsets, trees, local);
  };
  CHECK_THROWS(std::invalid_argument, insert(5, 0, 1));
  CHECK_THROWS(std::invalid_argument, insert(0, 2, 1));
  CHECK_THROWS(std::invalid_argument, insert(0, 0, 2));
  CHECK_EQUAL(index.size(), std::size_t{0});
  insert(4, 1, 1);
  CHECK_EQUAL(index.size(), std::size_t{1});
}
