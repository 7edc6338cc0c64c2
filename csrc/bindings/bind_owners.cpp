#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "by_owner.h"
#include "checks.h"
#include "remote_rows.h"
#include "visit.h"

namespace khop::bindings {
namespace {

std::tuple<Out<std::int64_t>, Out<std::int64_t>> remote_rows(Ids ids, std::int64_t first, std::int64_t end,
                                                             std::optional<Ids> slots, std::int64_t kept) {
  if (first < 0 || end < first || kept < 0) {
    throw std::invalid_argument("rows [" + std::to_string(first) + ", " + std::to_string(end) + ") here and " + std::to_string(kept) +
                                " kept: none of these may be negative, nor the range turned round");
  }
  if (slots) check_size(slots->size(), ids.size(), "slots");
  Buffer<std::int64_t> places(ids.size()), asked(ids.size());
  std::int64_t count = 0;
  {
    const nb::gil_scoped_release release;
    const RowsHere here{first, end, slots ? span_of(*slots) : std::span<const std::int64_t>{}, kept};
    count = khop::remote_rows(span_of(ids), here, places.data(), asked.data());
  }
  return {places.tensor({ids.size()}), asked.tensor({static_cast<std::size_t>(count)})};
}

std::tuple<Out<std::int64_t>, std::optional<Out<std::int64_t>>> owner_order(Ids ids, Ids bounds) {
  if (bounds.size() < 2) throw std::invalid_argument("bounds have " + std::to_string(bounds.size()) + " entries: an owner has two");
  Buffer<std::int64_t> counts(bounds.size() - 1), order(ids.size());
  bool is_wanted = false;
  {
    const nb::gil_scoped_release release;
    is_wanted = khop::owner_order(span_of(ids), span_of(bounds), counts.data(), order.data());
  }
  std::optional<Out<std::int64_t>> rows;
  if (is_wanted) rows = order.tensor({ids.size()});
  return {counts.tensor({bounds.size() - 1}), rows};
}

// Offsets, nodes and optional edges of every owner.
using DrawnByOwner = std::tuple<Ids, AnyIn, std::optional<Ids>>;

// Offsets and edges; nodes are written to `nodes`, which has the widest type of all owners.
std::tuple<Out<std::int64_t>, std::optional<Out<std::int64_t>>> join_drawn(const std::vector<DrawnByOwner>& drawn,
                                                                           std::optional<Ids> order, const AnyInto& nodes) {
  std::vector<OwnerDrawn> owners;
  std::size_t rows = 0;
  bool has_edges = true;
  std::size_t count = 0;
  for (const auto& [offsets, of_owner, edges] : drawn) {
    const bool is_narrow = visit_index(of_owner, [](auto node) { return sizeof(node) == sizeof(std::int32_t); });
    if (!is_narrow && nodes.dtype() == nb::dtype<std::int32_t>()) throw nb::type_error("nodes of 64 bits do not fit int32");
    check_offsets(span_of(offsets), static_cast<std::int64_t>(of_owner.size()), "offsets");
    if (edges) check_size(edges->size(), of_owner.size(), "edges");
    count += of_owner.size();
    owners.push_back({span_of(offsets), of_owner.data(), is_narrow, edges ? edges->data() : nullptr});
    rows += offsets.size() - 1;
    has_edges = has_edges && edges;
  }
  check_size(nodes.size(), count, "nodes");
  if (order) check_size(order->size(), rows, "order");
  Buffer<std::int64_t> offsets(rows + 1);
  std::optional<Buffer<std::int64_t>> edges;
  if (has_edges) edges.emplace(nodes.size());
  visit_index(nodes, [&](auto node) {
    const nb::gil_scoped_release release;
    khop::join_drawn(std::span<const OwnerDrawn>(owners), order ? span_of(*order) : std::span<const std::int64_t>{},
                     offsets.data(), as<decltype(node)>(nodes), edges ? edges->data() : nullptr);
  });
  std::optional<Out<std::int64_t>> positions;
  if (edges) positions = edges->tensor({nodes.size()});
  return {offsets.tensor({rows + 1}), positions};
}

}  // namespace
}  // namespace khop::bindings

void bind_owners(nb::module_& module) {
  using nb::arg;
  using namespace khop::bindings;
  module.def("remote_rows", &remote_rows, arg("ids").noconvert(), arg("first"), arg("end"), arg("slots").noconvert().none(),
             arg("kept"));
  module.def("owner_order", &owner_order, arg("ids").noconvert(), arg("bounds").noconvert());
  module.def("join_drawn", &join_drawn, arg("drawn"), arg("order").noconvert().none(), arg("nodes").noconvert());
}
