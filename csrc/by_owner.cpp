#include "by_owner.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

namespace khop {
namespace {

// fn(owner, row of it, row of all).
template <class Fn>
void over_rows(std::span<const OwnerDrawn> owners, std::span<const std::int64_t> order, Fn&& fn) {
  std::size_t next = 0;
  for (const OwnerDrawn& owner : owners) {
    for (std::size_t row = 0; row + 1 < owner.offsets.size(); ++row, ++next) {
      fn(owner, row, order.empty() ? next : static_cast<std::size_t>(order[next]));
    }
  }
}

// Checks that every row occurs once, so that rows do not overwrite each other.
void check_order(std::span<const std::int64_t> order) {
  std::vector<bool> seen(order.size());
  for (const std::int64_t row : order) {
    if (static_cast<std::uint64_t>(row) >= order.size() || seen[static_cast<std::size_t>(row)]) {
      throw std::invalid_argument("order has " + std::to_string(row) + ": must have each of " + std::to_string(order.size()) +
                                  " rows once");
    }
    seen[static_cast<std::size_t>(row)] = true;
  }
}

template <class Node, class Drawn>
void copy_nodes(const void* drawn, std::int64_t begin, std::int64_t end, Node* out) {
  const auto* nodes = static_cast<const Drawn*>(drawn);
  for (std::int64_t i = begin; i < end; ++i) *out++ = static_cast<Node>(nodes[i]);
}

}  // namespace

bool owner_order(std::span<const std::int64_t> ids, std::span<const std::int64_t> bounds, std::int64_t* counts,
                 std::int64_t* order) {
  const auto owner_of = [bounds](std::int64_t id) {
    const auto inner = bounds.subspan(1, bounds.size() - 2);  // skips owners without ids
    return static_cast<std::size_t>(std::upper_bound(inner.begin(), inner.end(), id) - inner.begin());
  };
  std::fill_n(counts, bounds.size() - 1, 0);
  if (!std::is_sorted(bounds.begin(), bounds.end())) throw std::invalid_argument("bounds of owners must ascend");
  bool is_ordered = true, is_inside = true;
  std::size_t before = 0;
  for (const std::int64_t id : ids) {
    const std::size_t owner = owner_of(id);
    ++counts[owner];
    is_inside = is_inside & (id >= bounds.front()) & (id < bounds.back());
    is_ordered = is_ordered && before <= owner;
    before = owner;
  }
  if (!is_inside) {
    throw std::invalid_argument("an id is not in [" + std::to_string(bounds.front()) + ", " + std::to_string(bounds.back()) +
                                "): no owner has it");
  }
  if (is_ordered) return false;
  std::vector<std::int64_t> next(bounds.size() - 1);
  std::int64_t begin = 0;
  for (std::size_t owner = 0; owner < next.size(); ++owner) next[owner] = std::exchange(begin, begin + counts[owner]);
  for (std::size_t row = 0; row < ids.size(); ++row) order[next[owner_of(ids[row])]++] = static_cast<std::int64_t>(row);
  return true;
}

template <class Node>
void join_drawn(std::span<const OwnerDrawn> owners, std::span<const std::int64_t> order, std::int64_t* offsets, Node* nodes,
                std::int64_t* edges) {
  check_order(order);
  std::int64_t rows = 0;
  over_rows(owners, order, [&](const OwnerDrawn& owner, std::size_t row, std::size_t to) {
    offsets[to + 1] = owner.offsets[row + 1] - owner.offsets[row];
    ++rows;
  });
  offsets[0] = 0;
  for (std::int64_t row = 0; row < rows; ++row) offsets[row + 1] += offsets[row];
  over_rows(owners, order, [&](const OwnerDrawn& owner, std::size_t row, std::size_t to) {
    const std::int64_t begin = owner.offsets[row], end = owner.offsets[row + 1];
    if (owner.is_narrow) {
      copy_nodes<Node, std::int32_t>(owner.nodes, begin, end, nodes + offsets[to]);
    } else {
      copy_nodes<Node, std::int64_t>(owner.nodes, begin, end, nodes + offsets[to]);
    }
    if (edges != nullptr) std::copy(owner.edges + begin, owner.edges + end, edges + offsets[to]);
  });
}

template void join_drawn(std::span<const OwnerDrawn>, std::span<const std::int64_t>, std::int64_t*, std::int32_t*, std::int64_t*);
template void join_drawn(std::span<const OwnerDrawn>, std::span<const std::int64_t>, std::int64_t*, std::int64_t*, std::int64_t*);

}  // namespace khop
