#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bindings.h"
#include "dispatch.h"
#include "drawn.h"
#include "known_edges.h"
#include "node_index.h"

namespace khop::bindings {
namespace {

template <class Index>
Drawn<Index> sample(Ids indptr, In<Index> indices, Ids nodes, std::int64_t fanout, bool replacement, std::uint64_t key,
                    std::uint32_t stream, std::optional<Ids> original_ids, std::optional<Ids> trees,
                    std::optional<Ids> ranges, bool edge_ids, int threads) {
  const Csc<Index> graph{span_of(indptr), span_of(indices)};
  const HopRequest request{span_of(nodes), optional_span(original_ids), optional_span(trees), fanout,
                           replacement ? Replacement::with : Replacement::without, key, stream, threads,
                           optional_span(ranges)};
  return drawn_by(graph, request, edge_ids, sample_hop<Index>);
}

template <class Index>
void bind_sample(nb::module_& module) {
  module.def("sample_uniform", &sample<Index>, nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
             nb::arg("nodes").noconvert(), nb::arg("fanout"), nb::arg("replacement"), nb::arg("key"), nb::arg("stream"),
             nb::arg("original_ids").noconvert().none(), nb::arg("trees").noconvert().none(),
             nb::arg("ranges").noconvert().none(), nb::arg("edge_ids"), nb::arg("threads"));
}

template <class Id>
Out<std::int32_t> insert(NodeIndex& index, In<Id> ids) {
  Buffer<std::int32_t> local(ids.size());
  {
    const nb::gil_scoped_release release;
    index.insert(span_of(ids), local.data());
  }
  return local.tensor({ids.size()});
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
  bind_sample<std::int32_t>(module);
  bind_sample<std::int64_t>(module);
  module.def("dispatch_levels", &supported_levels);
  module.def("dispatch_level", &level_name);
  module.def("set_dispatch_level", &choose_level, nb::arg("name"));
  nb::class_<khop::NodeIndex>(module, "NodeIndex")
      .def(nb::init<std::int64_t, std::uint32_t>(), nb::arg("num_nodes"), nb::arg("base") = 1)
      .def("insert", &insert<std::int32_t>, nb::arg("ids").noconvert())
      .def("insert", &insert<std::int64_t>, nb::arg("ids").noconvert())
      .def("nodes", &nodes_from, nb::arg("start"))
      .def("clear", &khop::NodeIndex::clear)
      .def("__len__", &khop::NodeIndex::size);  bind_known<std::int32_t>(module);
  bind_known<std::int64_t>(module);
}
