#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>

#include "bindings.h"
#include "tree_index.h"

namespace khop::bindings {
namespace {

using Ids = In<std::int64_t>;

template <class Id>
Out<std::int32_t> insert_pairs(TreeIndex& index, In<Id> ids, Ids offsets, Ids trees) {
  Buffer<std::int32_t> local(ids.size());
  {
    const nb::gil_scoped_release release;
    index.insert(span_of(ids), span_of(offsets), span_of(trees), local.data());
  }
  return local.tensor({ids.size()});
}

std::pair<Out<std::int64_t>, Out<std::int64_t>> pairs_from(const TreeIndex& index, std::size_t start) {
  const std::size_t count = index.size() - std::min(start, index.size());
  Buffer<std::int64_t> nodes(count), trees(count);
  {
    const nb::gil_scoped_release release;
    index.copy_pairs(start, nodes.data(), trees.data());
  }
  return {nodes.tensor({count}), trees.tensor({count})};
}

}  // namespace
}  // namespace khop::bindings

void bind_rules(nb::module_& module) {
  using namespace khop::bindings;
  nb::class_<khop::TreeIndex>(module, "TreeIndex")
      .def(nb::init<std::int64_t>(), nb::arg("num_nodes"))
      .def("reset", &khop::TreeIndex::reset, nb::arg("num_trees"))
      .def("insert", &insert_pairs<std::int32_t>, nb::arg("ids").noconvert(), nb::arg("offsets").noconvert(),
           nb::arg("trees").noconvert())
      .def("insert", &insert_pairs<std::int64_t>, nb::arg("ids").noconvert(), nb::arg("offsets").noconvert(),
           nb::arg("trees").noconvert())
      .def("pairs", &pairs_from, nb::arg("start"))
      .def("__len__", &khop::TreeIndex::size);
}
