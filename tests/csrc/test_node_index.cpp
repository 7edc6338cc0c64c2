#include "node_index.h"

#include <limits>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "random.h"

namespace {

constexpr std::int64_t kFarIds = std::int64_t{1} << 40;  // of a graph whose ids do not fit 32 bits

std::vector<std::int64_t> some_ids(std::size_t count, std::uint64_t range, std::uint64_t seed) {
  std::vector<std::int64_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<std::int64_t>(khop::mix64(seed * 1000003 + i) % range);
  return ids;
}

std::vector<std::int64_t> nodes_of(const khop::NodeIndex& index) {
  std::vector<std::int64_t> nodes(index.size());
  index.copy_nodes(0, nodes.data());
  return nodes;
}

// Several batches through one index, each beside a map.
void check_batches(khop::NodeIndex& index, std::int64_t num_nodes, std::size_t ids_per_insert) {
  for (std::uint64_t batch = 0; batch < 4; ++batch) {
    std::unordered_map<std::int64_t, std::int32_t> expected;
    std::vector<std::int64_t> in_order;
    for (std::uint64_t turn = 0; turn < 3; ++turn) {
      const auto ids = some_ids(ids_per_insert, static_cast<std::uint64_t>(num_nodes), batch * 10 + turn);
      std::vector<std::int32_t> local(ids.size());
      index.insert(std::span<const std::int64_t>(ids), local.data());
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const auto [found, is_new] = expected.try_emplace(ids[i], static_cast<std::int32_t>(expected.size()));
        if (is_new) in_order.push_back(ids[i]);
        CHECK_EQUAL(local[i], found->second);
      }
    }
    CHECK(nodes_of(index) == in_order);
    const auto ids = some_ids(ids_per_insert, static_cast<std::uint64_t>(num_nodes), batch * 10 + 1);
    const auto others = some_ids(ids_per_insert, static_cast<std::uint64_t>(num_nodes), batch * 10 + 5);
    for (const auto& asked : {ids, others}) {
      std::vector<std::int32_t> local(asked.size());
      index.find(std::span<const std::int64_t>(asked), local.data());
      for (std::size_t i = 0; i < asked.size(); ++i) {
        const auto known = expected.find(asked[i]);
        CHECK_EQUAL(local[i], known == expected.end() ? -1 : known->second);
      }
    }
    index.clear();
    CHECK_EQUAL(index.size(), std::size_t{0});
  }
}

}  // namespace

TEST(local_ids_are_in_first_seen_order_whatever_the_table) {
  for (const std::int64_t num_nodes :
       {std::int64_t{1}, std::int64_t{700}, khop::NodeIndex::kDenseNodes, khop::NodeIndex::kDenseNodes + 1,
        (std::int64_t{1} << 32), (std::int64_t{1} << 32) + 1, kFarIds}) {
    khop::NodeIndex index(num_nodes);
    check_batches(index, num_nodes, 900);
  }
}

TEST(a_hash_table_grows_while_ids_come_in) {
  for (const std::int64_t num_nodes : {khop::NodeIndex::kDenseNodes + 1, kFarIds}) {
    khop::NodeIndex index(num_nodes);
    check_batches(index, num_nodes, 20000);
  }
}

TEST(stamps_that_run_out_start_again) {
  constexpr std::uint32_t last = std::numeric_limits<std::uint32_t>::max();
  for (const std::int64_t num_nodes : {std::int64_t{3000}, khop::NodeIndex::kDenseNodes + 1, kFarIds}) {
    for (const std::uint32_t left : {0U, 1U, 899U, 900U, 901U, 2000U, 6000U}) {
      khop::NodeIndex index(num_nodes, last - left);
      check_batches(index, num_nodes, 900);
    }
  }
}

TEST(ids_out_of_range_are_refused_and_nothing_is_inserted) {
  khop::NodeIndex index(5);
  std::int32_t local[2];
  for (const std::int32_t bad : {5, -1, std::numeric_limits<std::int32_t>::min()}) {
    const std::vector<std::int32_t> ids{3, bad};
    CHECK_THROWS(std::invalid_argument, index.insert(std::span<const std::int32_t>(ids), local));
    CHECK_EQUAL(index.size(), std::size_t{0});
  }
  const std::vector<std::int64_t> far{3, (std::int64_t{1} << 32) + 1};
  CHECK_THROWS(std::invalid_argument, index.insert(std::span<const std::int64_t>(far), local));
}

TEST(a_graph_without_nodes_has_an_index) {
  khop::NodeIndex index(0);
  index.insert(std::span<const std::int32_t>(), nullptr);
  CHECK_EQUAL(index.size(), std::size_t{0});
}
