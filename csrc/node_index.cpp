#include "node_index.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "checks.h"

namespace khop {
namespace {

constexpr std::size_t kMostNodes = std::numeric_limits<std::int32_t>::max();
constexpr std::uint32_t kMostStamps = std::numeric_limits<std::uint32_t>::max();

template <class Id>
void check_ids(std::span<const Id> ids, std::int64_t num_nodes) {
  const std::int64_t at = first_outside(ids, num_nodes, 1);
  if (at < 0) return;
  throw std::invalid_argument("node id " + std::to_string(ids[static_cast<std::size_t>(at)]) + " at position " + std::to_string(at) +
                              ": not in [0, " + std::to_string(num_nodes) + "), the graph's nodes");
}

}  // namespace

template <class Slots>
void SlotIndex<Slots>::reserve(std::size_t most) {
  if (most > kMostNodes) throw std::invalid_argument("a batch holds at most 2^31 - 1 nodes: make it smaller");
  if (nodes_.size() < most + 1) nodes_.resize(std::max(most + 1, nodes_.size() + nodes_.size() / 2));
  if (base_ <= kMostStamps - most) return;
  base_ = 1;
  slots_.refill({nodes_.data(), count_}, base_);
}

template <class Slots>
void SlotIndex<Slots>::clear() {
  base_ += static_cast<std::uint32_t>(count_);
  count_ = 0;
}

NodeIndex::AnyIndex NodeIndex::index_for(std::int64_t num_nodes, std::uint32_t base) {
  if (num_nodes < 0 || base == 0) {
    throw std::invalid_argument("an index over " + std::to_string(num_nodes) + " nodes from stamp " + std::to_string(base) +
                                ": nodes must not be negative, stamps begin at 1");
  }
  const auto nodes = static_cast<std::size_t>(num_nodes);
  if (num_nodes <= kDenseNodes) return AnyIndex(std::in_place_index<0>, nodes, base);
  if (num_nodes <= std::int64_t{1} << 32) return AnyIndex(std::in_place_index<1>, nodes, base);
  return AnyIndex(std::in_place_index<2>, nodes, base);
}

NodeIndex::NodeIndex(std::int64_t num_nodes, std::uint32_t base)
    : num_nodes_(num_nodes), index_(index_for(num_nodes, base)) {}

template <class Id>
void NodeIndex::insert(std::span<const Id> ids, std::int32_t* local) {
  check_ids(ids, num_nodes_);
  reserve(ids.size());
  std::visit([&](auto& index) { index.insert(ids, local); }, index_);
}

void NodeIndex::reserve(std::size_t more) {
  const auto all = static_cast<std::size_t>(num_nodes_);
  std::visit([&](auto& index) { index.reserve(std::min(index.size() + more, all)); }, index_);
}

void NodeIndex::insert_in_range(std::span<const std::int64_t> ids, std::int32_t* local) {
  std::visit([&](auto& index) { index.insert(ids, local); }, index_);
}

template <class Id>
void NodeIndex::find(std::span<const Id> ids, std::int32_t* local) const {
  check_ids(ids, num_nodes_);
  std::visit([&](const auto& index) { index.find(ids, local); }, index_);
}

void NodeIndex::clear() {
  std::visit([](auto& index) { index.clear(); }, index_);
}

std::size_t NodeIndex::size() const {
  return std::visit([](const auto& index) { return index.size(); }, index_);
}

template void NodeIndex::insert(std::span<const std::int32_t>, std::int32_t*);
template void NodeIndex::insert(std::span<const std::int64_t>, std::int32_t*);
template void NodeIndex::find(std::span<const std::int32_t>, std::int32_t*) const;
template void NodeIndex::find(std::span<const std::int64_t>, std::int32_t*) const;

}  // namespace khop
