#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <variant>

#include "bindings.h"
#include "checks.h"
#include "outline.h"
#include "time_ranges.h"
#include "tree_index.h"
#include "visit.h"
#include "weight_sums.h"

namespace khop::bindings {
namespace {

// The times of edges and of sources, and the source of each edge.
using Column = std::variant<In<std::int64_t>, In<std::int32_t>, In<std::int16_t>, In<std::int8_t>, In<std::uint8_t>>;
using OwnTimes = std::tuple<std::optional<Column>, std::optional<Column>, std::variant<In<std::int32_t>, In<std::int64_t>>>;

template <class Any>
WholeNumbers numbers_of(const Any& any) {
  return std::visit([](const auto& numbers) { return WholeNumbers(span_of(numbers)); }, any);
}

// Throws std::invalid_argument unless each edge has a time.
EdgeTimes times_of(const OwnTimes& own, std::size_t edges) {
  const auto& [of_edges, of_sources, indices] = own;
  EdgeTimes times;
  times.indices = numbers_of(indices);
  check_size(static_cast<std::size_t>(times.indices.size()), edges, "indices");
  if (!of_edges && !of_sources) throw std::invalid_argument("neither edges nor sources have times");
  if (of_edges) {
    times.edges = numbers_of(*of_edges);
    check_size(static_cast<std::size_t>(times.edges.size()), edges, "times of edges");
  }
  if (of_sources) times.sources = numbers_of(*of_sources);
  if (of_sources && times.sources.size() == 0 && edges > 0) throw std::invalid_argument("no source has a time, and there are edges");
  return times;
}

Out<std::int64_t> ranges_of(Ids indptr, Ids times, In<std::int16_t> outline, const OwnTimes& own, Ids nodes, Ids until,
                            std::int64_t before, std::int64_t after, std::int64_t most, int threads) {
  const EdgeTimes own_times = times_of(own, times.size());
  if (indptr.size() == 0) throw std::invalid_argument("indptr has no entry: it must begin with 0");
  Buffer<std::int64_t> ranges(2 * nodes.size());
  {
    const nb::gil_scoped_release release;
    const RangeRequest request{span_of(nodes), span_of(until), before, after, most, threads};
    time_ranges(span_of(indptr), {span_of(times), span_of(outline)}, own_times, request, ranges.data());
  }
  return ranges.tensor({2 * nodes.size()});
}

std::int64_t unsorted_position(Ids indptr, const OwnTimes& own, int threads) {
  const auto edges = std::visit([](const auto& indices) { return indices.size(); }, std::get<2>(own));
  const EdgeTimes times = times_of(own, edges);
  const nb::gil_scoped_release release;
  return first_unsorted(span_of(indptr), times, static_cast<std::int64_t>(edges), threads);
}

void order_of_rows(Ids indptr, Ids times, Into<std::int64_t> order, int threads) {
  const nb::gil_scoped_release release;
  check_size(order.size(), times.size(), "order");
  sort_rows(span_of(indptr), span_of(times), order.data(), threads);
}

void outline_of(Ids indptr, Ids values, Into<std::int16_t> outline, int threads) {
  const nb::gil_scoped_release release;
  if (indptr.size() == 0) throw std::invalid_argument("indptr has no entry: it must begin with 0");
  const auto edges = static_cast<std::int64_t>(values.size()), rows = static_cast<std::int64_t>(indptr.size()) - 1;
  check_size(outline.size(), static_cast<std::size_t>(outline_size(edges, rows)), "outline");
  make_outline(span_of(indptr), span_of(values), outline.data(), threads);
}

template <class Weight>
std::int64_t sums_of(Ids indptr, In<Weight> weights, Into<std::int64_t> sums, int threads) {
  const nb::gil_scoped_release release;
  check_size(sums.size(), weights.size(), "sums");
  return weight_sums(span_of(indptr), span_of(weights), sums.data(), threads);
}

template <class Weight>
void bind_weight_sums(nb::module_& module) {
  module.def("weight_sums", &sums_of<Weight>, nb::arg("indptr").noconvert(), nb::arg("weights").noconvert(),
             nb::arg("sums").noconvert(), nb::arg("threads"));
}

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
  bind_weight_sums<float>(module);
  bind_weight_sums<double>(module);
  module.def("time_ranges", &ranges_of, nb::arg("indptr").noconvert(), nb::arg("times").noconvert(),
             nb::arg("outline").noconvert(), nb::arg("own").noconvert(), nb::arg("nodes").noconvert(), nb::arg("until").noconvert(), nb::arg("before"), nb::arg("after"),
             nb::arg("most"), nb::arg("threads"));
  module.def("outline_size", &khop::outline_size, nb::arg("edges"), nb::arg("rows"));
  module.def("make_outline", &outline_of, nb::arg("indptr").noconvert(), nb::arg("values").noconvert(),
             nb::arg("outline").noconvert(), nb::arg("threads"));
  module.def("first_unsorted", &unsorted_position, nb::arg("indptr").noconvert(), nb::arg("own").noconvert(),
             nb::arg("threads"));
  module.def("sort_rows", &order_of_rows, nb::arg("indptr").noconvert(), nb::arg("times").noconvert(),
             nb::arg("order").noconvert(), nb::arg("threads"));
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
