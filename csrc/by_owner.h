// Grouping of rows by owner, and joining of the owners' draws in the original order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace khop {

// Owner q has the ids in [bounds[q], bounds[q + 1]); every id has an owner. Writes the number of ids per owner to `counts`, and the
// rows grouped by owner, in their order, to `order`. Returns false, without writing `order`, if rows are already grouped. Throws
// std::invalid_argument for bounds that do not ascend and for an id outside of them.
bool owner_order(std::span<const std::int64_t> ids, std::span<const std::int64_t> bounds, std::int64_t* counts,
                 std::int64_t* order);

// The draw of one owner: row r has the nodes, and the edges if given, in [offsets[r], offsets[r + 1]).
struct OwnerDrawn {
  std::span<const std::int64_t> offsets;
  const void* nodes = nullptr;
  bool is_narrow = false;  // true: nodes have 32 bits
  const std::int64_t* edges = nullptr;
};

// The joined draw of all rows. The k-th row in order of owner is row order[k], or k if `order` is empty. `offsets` has room for
// rows + 1 entries; `nodes`, and `edges` if given, for all draws. Throws std::invalid_argument unless `order` has every row once.
template <class Node>
void join_drawn(std::span<const OwnerDrawn> owners, std::span<const std::int64_t> order, std::int64_t* offsets, Node* nodes,
                std::int64_t* edges);

}  // namespace khop
