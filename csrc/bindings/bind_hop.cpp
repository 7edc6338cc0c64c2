#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bindings.h"
#include "checks.h"
#include "outline.h"
#include "sample_hop.h"
#include "sample_smallest.h"
#include "sample_weighted.h"
#include "visit.h"

namespace khop::bindings {
namespace {

constexpr std::int64_t kMostFanout = (std::int64_t{1} << 31) - 1;

// A graph's arrays, converted from Python once.
class Edges {
 public:
  template <class Index>
  Edges(Ids indptr, In<Index> indices, std::int64_t num_sources)
      : indptr_(std::move(indptr)), indices_(std::move(indices)), num_sources_(num_sources) {
    if (indptr_.size() == 0) throw std::invalid_argument("indptr has no entry: it must begin with 0");
  }

  std::size_t rows() const { return indptr_.size() - 1; }
  std::size_t count() const {
    return std::visit([](const auto& indices) { return indices.size(); }, indices_);
  }
  std::int64_t num_sources() const { return num_sources_; }  // -1: unknown
  bool is_wide() const { return indices_.index() == 1; }

  // fn(Csc<Index>)
  template <class Fn>
  auto visit(const Fn& fn) const {
    return std::visit([&](const auto& indices) { return fn(Csc<std::remove_const_t<typename std::decay_t<decltype(indices)>::Scalar>>{
                                                   span_of(indptr_), span_of(indices)}); },
                      indices_);
  }

 private:
  Ids indptr_;
  std::variant<In<std::int32_t>, In<std::int64_t>> indices_;
  std::int64_t num_sources_;
};

// The rows of the draws of all edge types into a node type.
struct Rows {
  Ids nodes;
  std::optional<Ids> original_ids, trees;
};

// The kernel that executes a draw.
enum class Kernel { uniform, weighted, smallest };

Kernel kernel_named(std::string_view name) {
  if (name == "uniform") return Kernel::uniform;
  if (name == "weighted") return Kernel::weighted;
  if (name == "smallest") return Kernel::smallest;
  throw std::invalid_argument("kernel '" + std::string(name) + "': must be uniform, weighted or smallest");
}

// The keys of edges, of which a row returns the smallest.
struct Order {
  std::optional<SourceNumbers> numbers;  // keys by source; none: `keys`
  std::optional<Ids> keys, source_ids;
  std::optional<In<std::uint8_t>> has_parallel;

  // A given array has an entry per edge or row: an empty array is not the same as none.
  void check(const Edges& edges) const {
    if (keys) check_size(keys->size(), edges.count(), "keys");
    if (source_ids) check_size(source_ids->size(), edges.count(), "source_ids");
    if (has_parallel) check_size(has_parallel->size(), edges.rows(), "has_parallel");
  }

  template <class Index>
  KeysOfSources<Index> of_sources() const {
    return {*numbers, optional_span(source_ids), has_parallel ? span_of(*has_parallel) : std::span<const std::uint8_t>{}};
  }
};

Order order_by_source(std::uint64_t base, std::uint64_t later_base, std::uint64_t period, std::uint64_t later_from,
                      std::optional<Ids> source_ids, std::optional<In<std::uint8_t>> has_parallel) {
  if (period == 0) throw std::invalid_argument("period 0: must be 1 or more");
  return {SourceNumbers{base, later_base, period, later_from}, {}, std::move(source_ids), std::move(has_parallel)};
}

// The draw of one edge type. Python keeps the edges and the rows alive as long as the request.
struct DrawRequest {
  DrawRequest(const Edges& edges_of_type, const Rows& frontier, std::string_view kernel_name, std::int64_t most, bool with_replacement,
              std::uint64_t philox_key, std::uint32_t philox_stream, std::optional<Ids> row_ranges, std::optional<Ids> weight_sums,
              std::optional<In<std::int16_t>> outline_of_sums, const Order* order_of_edges)
      : edges(edges_of_type),
        rows(frontier),
        kernel(kernel_named(kernel_name)),
        fanout(most),
        replacement(with_replacement ? Replacement::with : Replacement::without),
        key(philox_key),
        stream(philox_stream),
        ranges(std::move(row_ranges)),
        sums(std::move(weight_sums)),
        outline(std::move(outline_of_sums)),
        order(order_of_edges) {
    if (fanout < -1 || fanout > kMostFanout) {
      throw std::invalid_argument("fanout " + std::to_string(fanout) + ": must be from 0 to 2^31 - 1, or -1 for all neighbors");
    }
    if (rows.original_ids) check_size(rows.original_ids->size(), edges.rows(), "original_ids");
    if (rows.trees) check_size(rows.trees->size(), rows.nodes.size(), "trees");
    if (ranges) check_size(ranges->size(), 2 * rows.nodes.size(), "ranges, a begin and an end per frontier row,");
    if (sums.has_value() != outline.has_value()) throw std::invalid_argument("weight sums come with their outline");
    if (sums.has_value() != (kernel == Kernel::weighted)) throw std::invalid_argument("weight sums are given to the kernel 'weighted'");
    if ((order != nullptr) != (kernel == Kernel::smallest)) throw std::invalid_argument("an order is given to the kernel 'smallest'");
    if (order != nullptr && replacement == Replacement::with) throw std::invalid_argument("the kernel 'smallest' has no replacement");
    if (order != nullptr) order->check(edges);
  }

  HopRequest on(int threads) const {
    return {span_of(rows.nodes), optional_span(rows.original_ids), optional_span(rows.trees), fanout, replacement, key, stream,
            threads, optional_span(ranges)};
  }

  const Edges& edges;
  const Rows& rows;
  Kernel kernel;
  std::int64_t fanout;  // -1: all
  Replacement replacement;
  std::uint64_t key;
  std::uint32_t stream;
  std::optional<Ids> ranges;  // begin and end of each frontier row's entries
  std::optional<Ids> sums;    // running sums of weights, and their outline
  std::optional<In<std::int16_t>> outline;
  const Order* order;  // of the kernel 'smallest', else null
};

using Draws = std::vector<const DrawRequest*>;

// The output of the draws of a hop, concatenated.
struct HopBuffers {
  std::optional<Buffer<std::int64_t>> offsets, wide_nodes, edges;
  std::optional<Buffer<std::int32_t>> nodes;
  std::size_t rows = 0, narrow = 0, wide = 0;  // written so far

  template <class Index>
  Index* next_nodes() const {
    if constexpr (sizeof(Index) == sizeof(std::int64_t)) {
      return wide_nodes->data() + wide;
    } else {
      return nodes->data() + narrow;
    }
  }
};

void make_room(HopBuffers& buffers, const Draws& draws, const std::vector<HopRequest>& requests, bool edge_ids) {
  std::size_t rows = 0, narrow = 0, wide = 0;
  bool any_wide = false;
  for (std::size_t d = 0; d < draws.size(); ++d) {
    const Edges& edges = draws[d]->edges;
    const auto room = static_cast<std::size_t>(edges.visit([&](const auto& graph) { return edge_capacity(graph, requests[d]); }));
    (edges.is_wide() ? wide : narrow) += room;
    any_wide |= edges.is_wide();
    rows += requests[d].nodes.size() + 1;
  }
  buffers.offsets.emplace(rows);
  buffers.nodes.emplace(narrow);
  if (any_wide) buffers.wide_nodes.emplace(wide);
  if (edge_ids) buffers.edges.emplace(narrow + wide);
}

template <class Index>
std::int64_t draw_by_kernel(const DrawRequest& draw, const Csc<Index>& graph, const HopRequest& request, const HopOutput<Index>& output) {
  switch (draw.kernel) {
    case Kernel::uniform:
      return sample_hop(graph, request, output);
    case Kernel::weighted:
      return sample_weighted(graph, Rising{span_of(*draw.sums), span_of(*draw.outline)}, request, output);
    case Kernel::smallest:
      if (draw.order->numbers) return sample_smallest(graph, draw.order->of_sources<Index>(), request, output);
      return sample_smallest(graph, KeysOfEdges{span_of(*draw.order->keys)}, request, output);
  }
  throw std::logic_error("a draw without a kernel");
}

std::size_t draw_into(HopBuffers& buffers, const DrawRequest& draw, const HopRequest& request) {
  const auto count = draw.edges.visit([&]<class Index>(const Csc<Index>& graph) {
    std::int64_t* const edges = buffers.edges ? buffers.edges->data() + buffers.narrow + buffers.wide : nullptr;
    const HopOutput<Index> output{buffers.offsets->data() + buffers.rows, buffers.template next_nodes<Index>(), edges};
    const std::int64_t drawn = draw_by_kernel(draw, graph, request, output);
    const std::int64_t num_sources = draw.edges.num_sources();
    if (num_sources >= 0) {
      check_sources(request, output.offsets, std::span<const Index>(output.nodes, static_cast<std::size_t>(drawn)), num_sources);
    }
    return drawn;
  });
  buffers.rows += request.nodes.size() + 1;
  (draw.edges.is_wide() ? buffers.wide : buffers.narrow) += static_cast<std::size_t>(count);
  return static_cast<std::size_t>(count);
}

using Drawn = std::tuple<Out<std::int64_t>, Out<std::int32_t>, std::optional<Out<std::int64_t>>, std::optional<Out<std::int64_t>>,
                         std::vector<std::size_t>>;

Drawn sample(const Draws& draws, bool edge_ids, int threads) {
  if (std::ranges::find(draws, nullptr) != draws.end()) throw nb::type_error("a draw is None: give a DrawRequest");
  HopBuffers buffers;
  std::vector<std::size_t> counts;
  {
    const nb::gil_scoped_release release;
    std::vector<HopRequest> requests;
    for (const DrawRequest* const draw : draws) requests.push_back(draw->on(threads));
    make_room(buffers, draws, requests, edge_ids);
    for (std::size_t d = 0; d < draws.size(); ++d) counts.push_back(draw_into(buffers, *draws[d], requests[d]));
  }
  std::optional<Out<std::int64_t>> wide_nodes, edges;
  if (buffers.wide_nodes) wide_nodes = buffers.wide_nodes->tensor({buffers.wide});
  if (buffers.edges) edges = buffers.edges->tensor({buffers.narrow + buffers.wide});
  return {buffers.offsets->tensor({buffers.rows}), buffers.nodes->tensor({buffers.narrow}), wide_nodes, edges, std::move(counts)};
}

std::int64_t find_parallel(const Edges& edges, Into<std::uint8_t> rows, int threads) {
  const nb::gil_scoped_release release;
  check_size(rows.size(), edges.rows(), "rows");
  return edges.visit([&](const auto& graph) { return find_parallel_rows(graph, rows.data(), threads); });
}

}  // namespace
}  // namespace khop::bindings

void bind_hop(nb::module_& module) {
  using namespace khop::bindings;
  nb::class_<Edges>(module, "Edges")
      .def(nb::init<Ids, In<std::int32_t>, std::int64_t>(), nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
           nb::arg("num_sources") = -1)
      .def(nb::init<Ids, In<std::int64_t>, std::int64_t>(), nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
           nb::arg("num_sources") = -1);
  nb::class_<Rows>(module, "Rows")
      .def(nb::init<Ids, std::optional<Ids>, std::optional<Ids>>(), nb::arg("nodes").noconvert(),
           nb::arg("original_ids").noconvert().none(), nb::arg("trees").noconvert().none());
  nb::class_<Order>(module, "Order");
  module.def("order_by_source", &order_by_source, nb::arg("base"), nb::arg("later_base"), nb::arg("period"), nb::arg("later_from"),
             nb::arg("source_ids").noconvert().none(), nb::arg("has_parallel").noconvert().none());
  module.def("order_by_edge", [](Ids keys) { return Order{{}, std::move(keys), {}, {}}; }, nb::arg("keys").noconvert());
  module.def("find_parallel_rows", &find_parallel, nb::arg("edges"), nb::arg("rows").noconvert(), nb::arg("threads"));
  nb::class_<DrawRequest>(module, "DrawRequest")
      .def(nb::init<const Edges&, const Rows&, std::string_view, std::int64_t, bool, std::uint64_t, std::uint32_t, std::optional<Ids>,
                    std::optional<Ids>, std::optional<In<std::int16_t>>, const Order*>(),
           nb::arg("edges"), nb::arg("rows"), nb::arg("kernel"), nb::arg("fanout"), nb::arg("replacement"), nb::arg("key"),
           nb::arg("stream"), nb::arg("ranges").noconvert().none(), nb::arg("sums").noconvert().none(),
           nb::arg("outline").noconvert().none(), nb::arg("order").none() = nb::none(), nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>(), nb::keep_alive<1, 12>());
  module.def("sample_hop", &sample, nb::arg("draws").noconvert(), nb::arg("edge_ids"), nb::arg("threads"));
}
