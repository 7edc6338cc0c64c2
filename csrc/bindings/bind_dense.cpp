#include "build_csc.h"
#include "checks.h"
#include "gather.h"
#include "segment.h"
#include "segment_max.h"
#include "segment_softmax.h"
#include "segment_weighted.h"
#include "visit.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace khop::bindings {
namespace {

constexpr std::size_t kMostNarrowRows = std::size_t{1} << 31;

std::int64_t first_outside(const AnyIn& ids, std::int64_t limit, int threads) {
  return visit_index(ids, [&](auto id) {
    const nb::gil_scoped_release release;
    return khop::first_outside(typed_span<const decltype(id)>(ids), limit, threads);
  });
}

std::int64_t first_wrong_offset(const Offsets& indptr, std::int64_t edges) {
  if (indptr.size() == 0) throw std::invalid_argument("indptr has no entry: it must begin with 0");
  const nb::gil_scoped_release release;
  return khop::first_wrong_offset(span_of(indptr), edges);
}

void check_rows(const Offsets& indptr, std::int64_t edges) {
  const nb::gil_scoped_release release;
  khop::check_rows(span_of(indptr), edges);
}

// The number of rows of `width` entries in an array.
std::int64_t rows_in(std::size_t entries, std::int64_t width, const char* name) {
  if (width < 0 || (width > 0 && entries % static_cast<std::size_t>(width) != 0)) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(entries) + " entries: no whole rows of " +
                                std::to_string(width));
  }
  return width > 0 ? static_cast<std::int64_t>(entries) / width : 0;
}

std::size_t times(std::size_t rows, std::int64_t width) { return rows * static_cast<std::size_t>(std::max<std::int64_t>(width, 0)); }

// Pieces of the table, width of a row in its numbers (to float32) or bytes, scales, rows wanted, output.
using ColumnArguments = std::tuple<std::vector<AnyIn>, std::int64_t, std::optional<In<float>>, std::int64_t, AnyInto>;

khop::GatherColumn::Kind kind_of(const AnyIn& table, const AnyInto& out) {
  using Kind = khop::GatherColumn::Kind;
  if (out.dtype() == nb::dtype<std::uint8_t>()) return Kind::bytes;
  if (table.dtype() == nb::dtype<khop::Float16>()) return Kind::float16;
  if (table.dtype() == nb::dtype<khop::BFloat16>()) return Kind::bfloat16;
  return table.dtype() == nb::dtype<std::int8_t>() ? Kind::int8 : Kind::uint8;
}

// A column, and the total number of rows of its pieces.
std::pair<khop::GatherColumn, std::int64_t> column_of(const ColumnArguments& arguments, std::size_t ids) {
  const auto& [tables, width, scales, count, out] = arguments;
  if (tables.empty()) throw std::invalid_argument("a column has no piece");
  if (count < 0 || static_cast<std::size_t>(count) > ids) {
    throw std::invalid_argument("a column of " + std::to_string(count) + " rows: there are " + std::to_string(ids) + " ids");
  }
  khop::GatherColumn column{kind_of(tables[0], out), {}, width, scales ? scales->data() : nullptr, count, out.data()};
  const bool is_copied = column.kind == khop::GatherColumn::Kind::bytes;
  if (!is_copied && out.dtype() != nb::dtype<float>()) throw nb::type_error("rows become bytes or float32");
  std::int64_t first = 0;
  for (const AnyIn& table : tables) {  // the address of each, and its first row
    if (table.dtype() != tables[0].dtype()) throw nb::type_error("pieces of a table differ in type");
    if (!is_copied) visit<khop::Float16, khop::BFloat16, std::int8_t, std::uint8_t>(table, [](auto) {});
    column.pieces.push_back({table.data(), first});
    first += rows_in(is_copied ? table.nbytes() : table.size(), width, "table");
  }
  khop::check_size(out.size(), times(static_cast<std::size_t>(count), width), "out");
  if (scales) khop::check_size(scales->size(), times(1, width), "scales");
  return {std::move(column), first};
}

void gather_columns(const std::vector<ColumnArguments>& arguments, const In<std::int64_t>& ids, int threads) {
  std::vector<khop::GatherColumn> columns;
  std::vector<std::int64_t> rows;  // of each column's table
  for (const ColumnArguments& each : arguments) {
    auto [column, of_table] = column_of(each, ids.size());
    columns.push_back(std::move(column));
    rows.push_back(of_table);
  }
  const nb::gil_scoped_release release;
  std::map<std::int64_t, std::int64_t> checked;  // rows of a table -> number of checked ids
  for (std::size_t i = 0; i < columns.size(); ++i) {
    std::int64_t& known = checked[rows[i]];
    if (columns[i].width == 0 || known >= columns[i].count) continue;  // rows without bytes: any id is valid
    khop::check_ids(span_of(ids).first(static_cast<std::size_t>(columns[i].count)), rows[i], "row", threads);
    known = columns[i].count;
  }
  khop::gather_columns(columns, span_of(ids), threads);
}

khop::Edges edges_of(const Offsets& indptr, const Ids32& indices) { return {span_of(indptr), span_of(indices)}; }

std::size_t rows_of(const Offsets& indptr) { return indptr.size() - 1; }

// Operands of a reduction: rows x of the sources and rows out of the destinations, with equal width. One pass over the edges.
struct Folded {
  Folded(const AnyIn& x, const Offsets& indptr, const Ids32& indices, const AnyInto& out, int threads) : edges(edges_of(indptr, indices)) {
    if (x.ndim() != 2 || out.ndim() != 2 || x.shape(1) != out.shape(1)) {
      throw std::invalid_argument("x and out must be matrices of as many columns");
    }
    if (x.dtype() != out.dtype()) throw nb::type_error("arrays differ in type");
    width = static_cast<std::int64_t>(out.shape(1));
    const nb::gil_scoped_release release;
    khop::check_offsets(edges.indptr, static_cast<std::int64_t>(indices.size()), "indptr");
    khop::check_size(out.shape(0), rows_of(indptr), "out, in rows,");
    khop::check_ids(edges.indices, static_cast<std::int64_t>(x.shape(0)), "source", threads);
  }
  khop::Edges edges;
  std::int64_t width;
};

// fn(x, out), typed.
template <class Fn>
void over_rows(const AnyIn& x, const AnyInto& out, Fn&& fn) {
  visit_float(x, [&](auto value) {
    using T = decltype(value);
    const nb::gil_scoped_release release;
    fn(as<const T>(x), as<T>(out));
  });
}

// Checks that two matrices have the same shape.
template <class Array>
void check_winners(const Array& winners, std::size_t rows, std::int64_t width) {
  if (winners.ndim() != 2) throw std::invalid_argument("winners must be a matrix");
  khop::check_size(winners.shape(0), rows, "winners, in rows,");
  khop::check_size(winners.shape(1), static_cast<std::size_t>(width), "winners, in columns,");
}

void segment_sum(const AnyIn& x, const Offsets& indptr, const Ids32& indices, const AnyInto& out, int threads) {
  const Folded folded(x, indptr, indices, out, threads);
  over_rows(x, out, [&](auto values, auto rows) { khop::segment_sum(values, folded.width, folded.edges, rows, threads); });
}

void segment_mean(const AnyIn& x, const Offsets& indptr, const Ids32& indices, const AnyInto& out, int threads) {
  const Folded folded(x, indptr, indices, out, threads);
  over_rows(x, out, [&](auto values, auto rows) { khop::segment_mean(values, folded.width, folded.edges, rows, threads); });
}

void segment_mean_gradient(const AnyIn& gradient, const Offsets& indptr, const Offsets& transposed_indptr,
                           const Ids32& transposed_indices, const AnyInto& out, int threads) {
  const Folded folded(gradient, transposed_indptr, transposed_indices, out, threads);
  khop::check_offsets(span_of(indptr), static_cast<std::int64_t>(transposed_indices.size()), "indptr");
  khop::check_size(gradient.shape(0), rows_of(indptr), "gradient, in rows,");
  over_rows(gradient, out, [&](auto values, auto rows) {
    khop::segment_mean_gradient(values, folded.width, folded.edges, span_of(indptr), rows, threads);
  });
}

void segment_max(const AnyIn& x, const Offsets& indptr, const Ids32& indices, const AnyInto& out,
                 const std::optional<AnyInto>& winners, int threads) {
  const Folded folded(x, indptr, indices, out, threads);
  if (winners) check_winners(*winners, rows_of(indptr), folded.width);
  over_rows(x, out, [&](auto values, auto rows) {
    khop::segment_max(values, folded.width, folded.edges, rows, winners ? as<std::int32_t>(*winners) : nullptr, threads);
  });
}

void segment_max_gradient(const AnyIn& gradient, const Offsets& transposed_indptr, const Ids32& transposed_indices,
                          const AnyIn& winners, const AnyInto& out, int threads) {
  const Folded folded(gradient, transposed_indptr, transposed_indices, out, threads);
  check_winners(winners, gradient.shape(0), folded.width);
  over_rows(gradient, out, [&](auto values, auto rows) {
    khop::segment_max_gradient(values, folded.width, folded.edges, as<const std::int32_t>(winners), rows, threads);
  });
}

// A weight of type A per edge and head; the heads share the columns evenly.
template <class Weights>
void check_edge_weights(const Weights& weights, bool is_double, std::int64_t heads, std::size_t edges, std::int64_t width) {
  if (weights.dtype() != (is_double ? nb::dtype<double>() : nb::dtype<float>())) {
    throw nb::type_error("weights must be as x is summed: float64 for float64, else float32");
  }
  if (heads < 1 || width % heads != 0) {
    throw std::invalid_argument("heads " + std::to_string(heads) + ": must divide the width " + std::to_string(width));
  }
  khop::check_size(weights.size(), times(edges, heads), "weights");
}

void segment_weighted_sum(const AnyIn& x, const AnyIn& weights, std::int64_t heads, const Offsets& indptr, const Ids32& indices,
                          const AnyInto& out, int threads) {
  const Folded folded(x, indptr, indices, out, threads);
  check_edge_weights(weights, x.dtype() == nb::dtype<double>(), heads, indices.size(), folded.width);
  over_rows(x, out, [&](auto values, auto rows) {
    using T = std::remove_pointer_t<decltype(rows)>;
    khop::segment_weighted_sum(values, folded.width, as<const khop::Accumulator<T>>(weights), heads, folded.edges, rows, threads);
  });
}

void segment_weighted_sum_gradient(const AnyIn& x, const AnyIn& gradient, std::int64_t heads, const Offsets& indptr,
                                   const Ids32& indices, const AnyInto& out, int threads) {
  if (x.ndim() != 2 || gradient.ndim() != 2 || x.shape(1) != gradient.shape(1)) {
    throw std::invalid_argument("x and gradient must be matrices of as many columns");
  }
  if (x.dtype() != gradient.dtype()) throw nb::type_error("arrays differ in type");
  const auto width = static_cast<std::int64_t>(x.shape(1));
  check_edge_weights(out, x.dtype() == nb::dtype<double>(), heads, indices.size(), width);
  khop::check_offsets(span_of(indptr), static_cast<std::int64_t>(indices.size()), "indptr");
  khop::check_size(gradient.shape(0), rows_of(indptr), "gradient, in rows,");
  visit_float(x, [&](auto value) {
    using T = decltype(value);
    const nb::gil_scoped_release release;
    khop::check_ids(span_of(indices), static_cast<std::int64_t>(x.shape(0)), "source", threads);
    khop::segment_weighted_sum_gradient(as<const T>(x), width, as<const T>(gradient), heads, edges_of(indptr, indices),
                                        as<khop::Accumulator<T>>(out), threads);
  });
}

// Scores (edges, heads) for the edges of `indptr`, and an output of the same shape.
void check_scores(const AnyIn& scores, std::int64_t heads, const Offsets& indptr, const AnyInto& out) {
  if (heads < 0) throw std::invalid_argument("heads " + std::to_string(heads) + ": must not be negative");
  const std::size_t edges = scores.ndim() == 0 ? 0 : scores.shape(0);
  khop::check_offsets(span_of(indptr), static_cast<std::int64_t>(edges), "indptr");
  khop::check_size(scores.size(), times(edges, heads), "scores");
  khop::check_size(out.size(), scores.size(), "out");
}

void segment_softmax(const AnyIn& scores, std::int64_t heads, const Offsets& indptr, const AnyInto& out, int threads) {
  check_scores(scores, heads, indptr, out);
  over_rows(scores, out, [&](auto from, auto to) { khop::segment_softmax(from, heads, span_of(indptr), to, threads); });
}

void segment_softmax_gradient(const AnyIn& result, const AnyIn& gradient, std::int64_t heads, const Offsets& indptr,
                              const AnyInto& out, int threads) {
  check_scores(result, heads, indptr, out);
  khop::check_size(gradient.size(), result.size(), "gradient");
  visit_float(result, [&](auto value) {
    using T = decltype(value);
    const nb::gil_scoped_release release;
    khop::segment_softmax_gradient(as<const T>(result), as<const T>(gradient), heads, span_of(indptr), as<T>(out), threads);
  });
}

void transpose(const Offsets& indptr, const Ids32& indices, const Into<std::int64_t>& transposed_indptr,
               const Into<std::int32_t>& rows) {
  const nb::gil_scoped_release release;
  khop::check_offsets(span_of(indptr), static_cast<std::int64_t>(indices.size()), "indptr");
  if (transposed_indptr.size() == 0) throw std::invalid_argument("transposed_indptr has no entry: one more than sources is needed");
  if (rows_of(indptr) > kMostNarrowRows) throw std::invalid_argument(std::to_string(rows_of(indptr)) + " rows: more than int32 can name");
  khop::check_ids(span_of(indices), static_cast<std::int64_t>(transposed_indptr.size()) - 1, "source", 1);
  khop::check_size(rows.size(), indices.size(), "rows");
  khop::transpose(edges_of(indptr, indices), typed_span<std::int64_t>(transposed_indptr), typed_span<std::int32_t>(rows));
}

std::pair<std::int64_t, std::int64_t> build_csc(const AnyIn& sources, const AnyIn& destinations, std::int64_t num_sources,
                                                const Into<std::int64_t>& indptr, const AnyInto& indices,
                                                const std::optional<Into<std::int64_t>>& order, int threads) {
  if (indptr.size() == 0) throw std::invalid_argument("indptr has no entry: one more than destinations is needed");
  if (sources.ndim() != 1 || destinations.ndim() != 1 || indices.ndim() != 1) throw std::invalid_argument("edges must be vectors");
  if (num_sources < 0) throw std::invalid_argument("num_sources " + std::to_string(num_sources) + ": must not be negative");
  khop::check_size(destinations.size(), sources.size(), "destinations");
  khop::check_size(indices.size(), sources.size(), "indices");
  if (order) khop::check_size(order->size(), sources.size(), "order");
  if (indices.dtype() == nb::dtype<std::int32_t>() && num_sources > std::int64_t{1} << 31) {
    throw std::invalid_argument(std::to_string(num_sources) + " sources: more than int32 can name");
  }
  const auto build = [&](auto id, auto index) {
    using Id = decltype(id);
    using Index = decltype(index);
    const nb::gil_scoped_release release;
    const khop::EdgeList<Id> edges{typed_span<const Id>(sources), typed_span<const Id>(destinations)};
    const auto offsets = typed_span<std::int64_t>(indptr);
    const auto ids = typed_span<Index>(indices);
    const auto outside = order ? khop::build_csc<Id, Index>(edges, num_sources, offsets, ids, typed_span<std::int64_t>(*order), threads)
                               : khop::build_csc<Id, Index>(edges, num_sources, offsets, ids, threads);
    return std::pair{outside.source, outside.destination};
  };
  if (sources.dtype() == nb::dtype<std::int32_t>()) return build(std::int32_t{}, std::int32_t{});
  return visit_index(indices, [&](auto index) { return build(std::int64_t{}, index); });
}

}  // namespace
}  // namespace khop::bindings

void bind_dense(nb::module_& module) {
  using namespace khop::bindings;
  using nb::arg;
  module.def("check_rows", &check_rows, arg("indptr").noconvert(), arg("edges"));
  module.def("first_outside", &first_outside, arg("ids").noconvert(), arg("limit"), arg("threads"));
  module.def("first_wrong_offset", &first_wrong_offset, arg("indptr").noconvert(), arg("edges"));
  module.def("gather_columns", &gather_columns, arg("columns"), arg("ids").noconvert(), arg("threads"));
  module.def("segment_sum", &segment_sum, arg("x").noconvert(), arg("indptr").noconvert(), arg("indices").noconvert(),
             arg("out").noconvert(), arg("threads"));
  module.def("segment_mean", &segment_mean, arg("x").noconvert(), arg("indptr").noconvert(), arg("indices").noconvert(),
             arg("out").noconvert(), arg("threads"));
  module.def("segment_mean_gradient", &segment_mean_gradient, arg("gradient").noconvert(), arg("indptr").noconvert(),
             arg("transposed_indptr").noconvert(), arg("transposed_indices").noconvert(), arg("out").noconvert(),
             arg("threads"));
  module.def("segment_max", &segment_max, arg("x").noconvert(), arg("indptr").noconvert(), arg("indices").noconvert(),
             arg("out").noconvert(), arg("winners").noconvert().none(), arg("threads"));
  module.def("segment_max_gradient", &segment_max_gradient, arg("gradient").noconvert(), arg("transposed_indptr").noconvert(),
             arg("transposed_indices").noconvert(), arg("winners").noconvert(), arg("out").noconvert(), arg("threads"));
  module.def("segment_weighted_sum", &segment_weighted_sum, arg("x").noconvert(), arg("weights").noconvert(), arg("heads"),
             arg("indptr").noconvert(), arg("indices").noconvert(), arg("out").noconvert(), arg("threads"));
  module.def("segment_weighted_sum_gradient", &segment_weighted_sum_gradient, arg("x").noconvert(), arg("gradient").noconvert(),
             arg("heads"), arg("indptr").noconvert(), arg("indices").noconvert(), arg("out").noconvert(), arg("threads"));
  module.def("segment_softmax", &segment_softmax, arg("scores").noconvert(), arg("heads"), arg("indptr").noconvert(),
             arg("out").noconvert(), arg("threads"));
  module.def("segment_softmax_gradient", &segment_softmax_gradient, arg("result").noconvert(), arg("gradient").noconvert(),
             arg("heads"), arg("indptr").noconvert(), arg("out").noconvert(), arg("threads"));
  module.def("transpose", &transpose, arg("indptr").noconvert(), arg("indices").noconvert(),
             arg("transposed_indptr").noconvert(), arg("rows").noconvert());
  module.def("build_csc", &build_csc, arg("sources").noconvert(), arg("destinations").noconvert(), arg("num_sources"),
             arg("indptr").noconvert(), arg("indices").noconvert(), arg("order").noconvert().none(), arg("threads"));
}
