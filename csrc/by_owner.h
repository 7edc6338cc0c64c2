// Rows that are shared out to owners, and what every owner drew for its rows put in order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace khop {

// Owner q has the ids of [bounds[q], bounds[q + 1]); every id has an owner. Writes how many each has to `counts`, and to `order`
// the rows owner by owner, those of one in their order. Throws std::invalid_argument for bounds that do not ascend and an id outside. False where they stand so already; `order` is not written then.
bool owner_order(std::span<const std::int64_t> ids, std::span<const std::int64_t> bounds, std::int64_t* counts,
                 std::int64_t* order);

// What one owner drew for its rows: row r has the nodes, and edges unless there are none, from offsets[r] up to offsets[r + 1].
struct OwnerDrawn {
  std::span<const std::int64_t> offsets;
  const void* nodes = nullptr;
  bool is_narrow = false;  // whether nodes are of 32 bits
  const std::int64_t* edges = nullptr;
};

// The same of all rows. Row order[k], or k where `order` is empty, is the k-th one owner by owner. `offsets` has room for every
// row and one more; `nodes`, and `edges` unless it is none, for all that was drawn. Throws std::invalid_argument for an order that
// does not have every row once.
template <class Node>
void join_drawn(std::span<const OwnerDrawn> owners, std::span<const std::int64_t> order, std::int64_t* offsets, Node* nodes,
                std::int64_t* edges);

}  // namespace khop
