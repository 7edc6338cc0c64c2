#include "by_owner.h"

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "check.h"

namespace {

using Ids = std::vector<std::int64_t>;

// What an owner draws for an id, and what it says of the edges.
Ids drawn_for(std::int64_t id) {
  Ids nodes;
  for (std::int64_t i = 0; i < id % 4; ++i) nodes.push_back(100 * id + i);
  return nodes;
}

// Shares ids out, lets every owner draw, the odd ones in 32 bits, and puts all in order.
void goes_round(const Ids& ids, const Ids& bounds) {
  Ids counts(bounds.size() - 1), order(ids.size());
  const bool is_shuffled = khop::owner_order(ids, bounds, counts.data(), order.data());
  if (!is_shuffled) {
    for (std::size_t row = 0; row < order.size(); ++row) order[row] = static_cast<std::int64_t>(row);
  }
  std::vector<Ids> offsets, wide;
  std::vector<std::vector<std::int32_t>> narrow;
  std::size_t next = 0, total = 0;
  for (std::size_t owner = 0; owner < counts.size(); ++owner) {
    offsets.push_back({0});
    wide.emplace_back();
    for (std::int64_t row = 0; row < counts[owner]; ++row, ++next) {
      const std::int64_t id = ids[static_cast<std::size_t>(order[next])];
      CHECK(bounds[owner] <= id && id < bounds[owner + 1]);
      for (const std::int64_t node : drawn_for(id)) wide.back().push_back(node);
      offsets.back().push_back(static_cast<std::int64_t>(wide.back().size()));
    }
    narrow.emplace_back(wide.back().begin(), wide.back().end());
    total += wide.back().size();
  }
  CHECK_EQUAL(next, ids.size());
  std::vector<khop::OwnerDrawn> drawn;
  for (std::size_t owner = 0; owner < counts.size(); ++owner) {
    const bool is_narrow = owner % 2 == 1;
    const void* nodes = is_narrow ? static_cast<const void*>(narrow[owner].data()) : wide[owner].data();
    drawn.push_back({offsets[owner], nodes, is_narrow, wide[owner].data()});
  }
  Ids joined(ids.size() + 1), nodes(total), edges(total), expected, expected_offsets = {0};
  khop::join_drawn(drawn, is_shuffled ? order : Ids{}, joined.data(), nodes.data(), edges.data());
  for (const std::int64_t id : ids) {
    for (const std::int64_t node : drawn_for(id)) expected.push_back(node);
    expected_offsets.push_back(static_cast<std::int64_t>(expected.size()));
  }
  CHECK(joined == expected_offsets);
  CHECK(nodes == expected);
  CHECK(edges == expected);
  std::vector<std::int32_t> small(total);
  khop::join_drawn(drawn, is_shuffled ? order : Ids{}, joined.data(), small.data(), nullptr);
  CHECK(Ids(small.begin(), small.end()) == expected);
}

}  // namespace

TEST(what_owners_draw_for_their_shares_stands_in_the_order_of_all) {
  const std::vector<Ids> many_bounds = {{0, 60}, {0, 20, 20, 45, 60}, {0, 0, 60}};
  for (const Ids& bounds : many_bounds) {
    Ids shuffled, rising;
    for (std::int64_t i = 0; i < 200; ++i) shuffled.push_back(i * 37 % 60), rising.push_back(i * 60 / 200);
    goes_round({}, bounds);
    goes_round({7}, bounds);
    goes_round(shuffled, bounds);
    goes_round(rising, bounds);
  }
}

TEST(rows_that_stand_owner_by_owner_are_left_so) {
  Ids counts(2), order(3, -1);
  CHECK(!khop::owner_order(Ids{9, 2, 12}, Ids{0, 10, 20}, counts.data(), order.data()));
  CHECK(counts == Ids({2, 1}));
  CHECK(khop::owner_order(Ids{12, 9, 2}, Ids{0, 10, 20}, counts.data(), order.data()));
  CHECK(order == Ids({1, 2, 0}));
}

TEST(ids_without_an_owner_and_orders_that_repeat_a_row_are_refused) {
  Ids counts(2), order(3);
  CHECK_THROWS(std::invalid_argument, khop::owner_order(Ids{9, 20}, Ids{0, 10, 20}, counts.data(), order.data()));
  CHECK_THROWS(std::invalid_argument, khop::owner_order(Ids{9}, Ids{0, 30, 20}, counts.data(), order.data()));
  const Ids offsets{0, 1, 3}, nodes{4, 5, 6};
  const std::vector<khop::OwnerDrawn> drawn{{offsets, nodes.data(), false, nullptr}};
  Ids joined_offsets(3), joined(3);
  for (const Ids& wrong : {Ids{0, 0}, Ids{0, 2}, Ids{-1, 0}}) {
    CHECK_THROWS(std::invalid_argument, khop::join_drawn(std::span<const khop::OwnerDrawn>(drawn), wrong, joined_offsets.data(), joined.data(), static_cast<std::int64_t*>(nullptr)));
  }
}
