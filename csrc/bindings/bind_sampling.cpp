#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings.h"
#include "checks.h"
#include "dispatch.h"
#include "known_edges.h"
#include "node_index.h"

namespace khop::bindings {
namespace {

// An index, and the ids to look up in it.
using AnyIds = std::variant<In<std::int32_t>, In<std::int64_t>>;
using Lookup = std::pair<NodeIndex*, AnyIds>;

// The local ids of all lookups, concatenated.
Out<std::int32_t> insert(const std::vector<Lookup>& lookups) {
  const auto size_of = [](const AnyIds& any) { return std::visit([](const auto& ids) { return ids.size(); }, any); };
  std::size_t count = 0;
  for (const auto& [index, ids] : lookups) {
    if (index == nullptr) throw nb::type_error("a lookup without an index");
    count += size_of(ids);
  }
  Buffer<std::int32_t> local(count);
  {
    const nb::gil_scoped_release release;
    std::int32_t* next = local.data();
    for (const auto& [index, any] : lookups) {
      std::visit([&](const auto& ids) { index->insert(span_of(ids), next); }, any);
      next += size_of(any);
    }
  }
  return local.tensor({count});
}

Out<std::int64_t> nodes_from(const NodeIndex& index, std::size_t start) {
  const std::size_t count = index.size() - std::min(start, index.size());
  Buffer<std::int64_t> nodes(count);
  {
    const nb::gil_scoped_release release;
    index.copy_nodes(start, nodes.data());
  }
  return nodes.tensor({count});
}

using Known = std::tuple<Out<std::int64_t>, Out<std::int32_t>, Out<std::int64_t>>;

template <class Id>
Known known(const NodeIndex& index, Ids offsets, In<Id> nodes, Ids edges) {
  const EdgeRows<Id> rows{span_of(offsets), span_of(nodes), span_of(edges)};
  check_offsets(rows.offsets, static_cast<std::int64_t>(nodes.size()), "offsets");
  check_size(edges.size(), nodes.size(), "edges");
  Buffer<std::int64_t> kept_offsets(offsets.size()), kept_edges(nodes.size());
  Buffer<std::int32_t> local(nodes.size());
  std::size_t count = 0;
  {
    const nb::gil_scoped_release release;
    count = known_edges(index, rows, {kept_offsets.data(), local.data(), kept_edges.data()});
  }
  return {kept_offsets.tensor({offsets.size()}), local.tensor({count}), kept_edges.tensor({count})};
}

template <class Id>
void bind_known(nb::module_& module) {
  module.def("known_edges", &known<Id>, nb::arg("index"), nb::arg("offsets").noconvert(), nb::arg("nodes").noconvert(),
             nb::arg("edges").noconvert());
}

std::vector<std::string> supported_levels() {
  std::vector<std::string> names;
  for (const LevelInfo& level : dispatch_levels()) {
    if (level.supported) names.emplace_back(level.name);
  }
  return names;
}

std::string level_name() { return std::string(dispatch_levels()[static_cast<std::size_t>(dispatch_level())].name); }

void choose_level(std::string_view name) {
  if (!set_dispatch_level(name)) throw std::invalid_argument("dispatch level " + std::string(name) + ": not on this machine");
}

}  // namespace
}  // namespace khop::bindings

void bind_sampling(nb::module_& module) {
  using namespace khop::bindings;
  module.def("dispatch_levels", &supported_levels);
  module.def("dispatch_level", &level_name);
  module.def("set_dispatch_level", &choose_level, nb::arg("name"));
  nb::class_<khop::NodeIndex>(module, "NodeIndex")
      .def(nb::init<std::int64_t, std::uint32_t>(), nb::arg("num_nodes"), nb::arg("base") = 1)
      .def("nodes", &nodes_from, nb::arg("start"))
      .def("clear", &khop::NodeIndex::clear)
      .def("__len__", &khop::NodeIndex::size);
  module.def("insert", &insert, nb::arg("lookups").noconvert());
  bind_known<std::int32_t>(module);
  bind_known<std::int64_t>(module);
}
