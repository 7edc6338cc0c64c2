#include "build_csc.h"
#include "checks.h"
#include "gather.h"
#include "segment.h"
#include "segment_max.h"
#include "segment_softmax.h"
#include "visit.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace khop::bindings;
using Offsets = In<std::int64_t>;
using Ids32 = In<std::int32_t>;

std::int64_t first_outside(const AnyIn& ids, std::int64_t limit, int threads) {
  return visit_index(ids, [&](auto id) {
    const nb::gil_scoped_release release;
    return khop::first_outside(typed_span<const decltype(id)>(ids), limit, threads);
  });
}

std::int64_t first_wrong_offset(const Offsets& indptr, std::int64_t edges) {
  const nb::gil_scoped_release release;
  return khop::first_wrong_offset(typed_span<const std::int64_t>(indptr), edges);
}

void gather(const AnyIn& table, std::int64_t row_bytes, const In<std::int64_t>& ids, const AnyInto& out, int threads) {
  const nb::gil_scoped_release release;
  khop::gather(static_cast<const std::byte*>(table.data()), row_bytes, typed_span<const std::int64_t>(ids),
               static_cast<std::byte*>(out.data()), threads);
}

void gather_float32(const AnyIn& table, std::int64_t width, const In<std::int64_t>& ids, const std::optional<In<float>>& scales,
                    const Into<float>& out, int threads) {
  visit<khop::Float16, khop::BFloat16, std::int8_t, std::uint8_t>(table, [&](auto value) {
    const nb::gil_scoped_release release;
    khop::gather_float32(as<const decltype(value)>(table), width, typed_span<const std::int64_t>(ids),
                         scales ? scales->data() : nullptr, out.data(), threads);
  });
}

// Pieces of the table, width of a row in its numbers (to float32) or bytes, scales, rows wanted, output.
using ColumnArguments = std::tuple<std::vector<AnyIn>, std::int64_t, std::optional<In<float>>, std::int64_t, AnyInto>;

khop::GatherColumn::Kind kind_of(const AnyIn& table, const AnyInto& out) {
  using Kind = khop::GatherColumn::Kind;
  if (out.dtype() == nb::dtype<std::uint8_t>()) return Kind::bytes;
  if (table.dtype() == nb::dtype<khop::Float16>()) return Kind::float16;
  if (table.dtype() == nb::dtype<khop::BFloat16>()) return Kind::bfloat16;
  return table.dtype() == nb::dtype<std::int8_t>() ? Kind::int8 : Kind::uint8;
}

// Where each piece lies, and the first of its rows.
std::vector<khop::Piece> pieces_of(const std::vector<AnyIn>& tables, std::int64_t width) {
  std::vector<khop::Piece> pieces;
  std::int64_t first = 0;
  for (const AnyIn& table : tables) {
    pieces.push_back({table.data(), first});
    first += width > 0 ? static_cast<std::int64_t>(table.size()) / width : 0;
  }
  return pieces;
}

void gather_columns(const std::vector<ColumnArguments>& arguments, const In<std::int64_t>& ids, int threads) {
  std::vector<khop::GatherColumn> columns;
  for (const auto& [tables, width, scales, count, out] : arguments) {
    columns.push_back({kind_of(tables.at(0), out), pieces_of(tables, width), width, scales ? scales->data() : nullptr, count,
                       out.data()});
  }
  const nb::gil_scoped_release release;
  khop::gather_columns(columns, span_of(ids), threads);
}

// fn(x, width, out), typed.
template <class Fn>
void over_rows(const AnyIn& x, const AnyInto& out, Fn&& fn) {
  visit_float(x, [&](auto value) {
    using T = decltype(value);
    const auto width = static_cast<std::int64_t>(out.shape(1));
    const nb::gil_scoped_release release;
    fn(as<const T>(x), width, as<T>(out));
  });
}

khop::Edges edges_of(const Offsets& indptr, const Ids32& indices) {
  return {typed_span<const std::int64_t>(indptr), typed_span<const std::int32_t>(indices)};
}

void segment_sum(const AnyIn& x, const Offsets& indptr, const Ids32& indices, const AnyInto& out, int threads) {
  over_rows(x, out, [&](auto values, auto width, auto rows) {
    khop::segment_sum(values, width, edges_of(indptr, indices), rows, threads);
  });
}

void segment_mean(const AnyIn& x, const Offsets& indptr, const Ids32& indices, const AnyInto& out, int threads) {
  over_rows(x, out, [&](auto values, auto width, auto rows) {
    khop::segment_mean(values, width, edges_of(indptr, indices), rows, threads);
  });
}

void segment_mean_gradient(const AnyIn& gradient, const Offsets& indptr, const Offsets& transposed_indptr,
                           const Ids32& transposed_indices, const AnyInto& out, int threads) {
  over_rows(gradient, out, [&](auto values, auto width, auto rows) {
    khop::segment_mean_gradient(values, width, edges_of(transposed_indptr, transposed_indices),
                                typed_span<const std::int64_t>(indptr), rows, threads);
  });
}

void segment_max(const AnyIn& x, const Offsets& indptr, const Ids32& indices, const AnyInto& out,
                 const std::optional<AnyInto>& winners, int threads) {
  over_rows(x, out, [&](auto values, auto width, auto rows) {
    khop::segment_max(values, width, edges_of(indptr, indices), rows, winners ? as<std::int32_t>(*winners) : nullptr, threads);
  });
}

void segment_max_gradient(const AnyIn& gradient, const Offsets& transposed_indptr, const Ids32& transposed_indices,
                          const AnyIn& winners, const AnyInto& out, int threads) {
  over_rows(gradient, out, [&](auto values, auto width, auto rows) {
    khop::segment_max_gradient(values, width, edges_of(transposed_indptr, transposed_indices),
                               as<const std::int32_t>(winners), rows, threads);
  });
}

void segment_softmax(const AnyIn& scores, std::int64_t heads, const Offsets& indptr, const AnyInto& out, int threads) {
  visit_float(scores, [&](auto value) {
    using T = decltype(value);
    const nb::gil_scoped_release release;
    khop::segment_softmax(as<const T>(scores), heads, typed_span<const std::int64_t>(indptr), as<T>(out), threads);
  });
}

void segment_softmax_gradient(const AnyIn& result, const AnyIn& gradient, std::int64_t heads, const Offsets& indptr,
                              const AnyInto& out, int threads) {
  visit_float(result, [&](auto value) {
    using T = decltype(value);
    const nb::gil_scoped_release release;
    khop::segment_softmax_gradient(as<const T>(result), as<const T>(gradient), heads,
                                   typed_span<const std::int64_t>(indptr), as<T>(out), threads);
  });
}

void transpose(const Offsets& indptr, const Ids32& indices, const Into<std::int64_t>& transposed_indptr,
               const Into<std::int32_t>& rows) {
  const nb::gil_scoped_release release;
  khop::transpose(edges_of(indptr, indices), typed_span<std::int64_t>(transposed_indptr), typed_span<std::int32_t>(rows));
}

std::pair<std::int64_t, std::int64_t> build_csc(const AnyIn& sources, const AnyIn& destinations, std::int64_t num_sources,
                                                const Into<std::int64_t>& indptr, const AnyInto& indices,
                                                const Into<std::int64_t>& order, int threads) {
  const auto build = [&](auto id, auto index) {
    using Id = decltype(id);
    using Index = decltype(index);
    const nb::gil_scoped_release release;
    const auto outside = khop::build_csc<Id, Index>(
        {typed_span<const Id>(sources), typed_span<const Id>(destinations)}, num_sources, typed_span<std::int64_t>(indptr),
        typed_span<Index>(indices), typed_span<std::int64_t>(order), threads);
    return std::pair{outside.source, outside.destination};
  };
  if (sources.dtype() == nb::dtype<std::int32_t>()) return build(std::int32_t{}, std::int32_t{});
  return visit_index(indices, [&](auto index) { return build(std::int64_t{}, index); });
}

}  // namespace

void bind_dense(nb::module_& module) {
  using nb::arg;
  module.def("first_outside", &first_outside, arg("ids").noconvert(), arg("limit"), arg("threads"));
  module.def("first_wrong_offset", &first_wrong_offset, arg("indptr").noconvert(), arg("edges"));
  module.def("gather", &gather, arg("table").noconvert(), arg("row_bytes"), arg("ids").noconvert(), arg("out").noconvert(),
             arg("threads"));
  module.def("gather_float32", &gather_float32, arg("table").noconvert(), arg("width"), arg("ids").noconvert(),
             arg("scales").noconvert().none(), arg("out").noconvert(), arg("threads"));
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
  module.def("segment_softmax", &segment_softmax, arg("scores").noconvert(), arg("heads"), arg("indptr").noconvert(),
             arg("out").noconvert(), arg("threads"));
  module.def("segment_softmax_gradient", &segment_softmax_gradient, arg("result").noconvert(), arg("gradient").noconvert(),
             arg("heads"), arg("indptr").noconvert(), arg("out").noconvert(), arg("threads"));
  module.def("transpose", &transpose, arg("indptr").noconvert(), arg("indices").noconvert(),
             arg("transposed_indptr").noconvert(), arg("rows").noconvert());
  module.def("build_csc", &build_csc, arg("sources").noconvert(), arg("destinations").noconvert(), arg("num_sources"),
             arg("indptr").noconvert(), arg("indices").noconvert(), arg("order").noconvert(), arg("threads"));
}
