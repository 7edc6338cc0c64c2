#include "checks.h"
#include "segment_mixture.h"
#include "visit.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace khop::bindings {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

std::int64_t columns_of(const AnyIn& matrix, const char* name) {
  if (matrix.ndim() != 2) throw std::invalid_argument(std::string(name) + " must be a matrix");
  return static_cast<std::int64_t>(matrix.shape(1));
}

khop::Edges checked_edges(const Offsets& indptr, const Ids32& indices, std::size_t sources, int threads) {
  khop::check_offsets(span_of(indptr), static_cast<std::int64_t>(indices.size()), "indptr");
  khop::check_ids(span_of(indices), static_cast<std::int64_t>(sources), "source", threads);
  return {span_of(indptr), span_of(indices)};
}

void segment_mixture(const AnyIn& x, const AnyIn& weights, const Offsets& indptr, const Ids32& indices, const AnyInto& out,
                     int threads) {
  const std::int64_t width = columns_of(x, "x"), bases = columns_of(weights, "weights");
  khop::check_size(weights.shape(0), indices.size(), "weights, in rows,");
  visit<float, double>(x, [&](auto value) {
    using T = decltype(value);
    const nb::gil_scoped_release release;
    const khop::Edges edges = checked_edges(indptr, indices, x.shape(0), threads);
    khop::check_size(out.size(), (indptr.size() - 1) * static_cast<std::size_t>(bases * width), "out");
    khop::segment_mixture(as<const T>(x), width, as<const T>(weights), bases, edges, as<T>(out), threads);
  });
}

void segment_mixture_sources(const AnyIn& gradient, const AnyIn& weights, const Offsets& indptr, const Ids32& rows,
                             const Ids32& positions, const AnyInto& out, int threads) {
  const std::int64_t all = columns_of(gradient, "gradient"), bases = columns_of(weights, "weights");
  if (bases < 1 || all % bases != 0) throw std::invalid_argument("gradient must have a row of columns for each basis");
  khop::check_size(positions.size(), rows.size(), "positions");
  visit<float, double>(gradient, [&](auto value) {
    using T = decltype(value);
    const nb::gil_scoped_release release;
    const khop::Edges edges = checked_edges(indptr, rows, gradient.shape(0), threads);
    khop::check_ids(span_of(positions), static_cast<std::int64_t>(weights.shape(0)), "edge", threads);
    khop::check_size(out.size(), (indptr.size() - 1) * static_cast<std::size_t>(all / bases), "out");
    khop::segment_mixture_sources(as<const T>(gradient), all / bases, as<const T>(weights), bases, edges, span_of(positions),
                                  as<T>(out), threads);
  });
}

void segment_mixture_weights(const AnyIn& x, const AnyIn& gradient, const Offsets& indptr, const Ids32& indices, const AnyInto& out,
                             int threads) {
  const std::int64_t width = columns_of(x, "x"), all = columns_of(gradient, "gradient");
  if (width < 1 || all % width != 0) throw std::invalid_argument("gradient must have the columns of x for each basis");
  visit<float, double>(x, [&](auto value) {
    using T = decltype(value);
    const nb::gil_scoped_release release;
    const khop::Edges edges = checked_edges(indptr, indices, x.shape(0), threads);
    khop::check_size(gradient.shape(0), indptr.size() - 1, "gradient, in rows,");
    khop::check_size(out.size(), indices.size() * static_cast<std::size_t>(all / width), "out");
    khop::segment_mixture_weights(as<const T>(x), width, as<const T>(gradient), all / width, edges, as<T>(out), threads);
  });
}

// The edges of several types, each with the first row of its sources; all sources together are `sources`.
void merge_edges(const std::vector<Offsets>& indptrs, const std::vector<Ids32>& indices, const std::vector<std::int64_t>& firsts,
                 std::int64_t sources, const Into<std::int64_t>& indptr, const Into<std::int32_t>& merged,
                 const Into<std::int32_t>& relations, int threads) {
  khop::check_size(indices.size(), indptrs.size(), "indices");
  khop::check_size(firsts.size(), indptrs.size(), "firsts");
  if (sources < 0 || sources > kMost) throw std::invalid_argument("sources " + std::to_string(sources) + ": must fit 32 bits");
  if (indptr.size() == 0) throw std::invalid_argument("indptr has no entry");
  const nb::gil_scoped_release release;
  std::vector<khop::TypedEdges> types;
  std::size_t all = 0;
  for (std::size_t i = 0; i < indptrs.size(); ++i) {
    if (firsts[i] < 0 || firsts[i] > sources) throw std::invalid_argument("first " + std::to_string(firsts[i]) + ": no row");
    khop::check_size(indptrs[i].size(), indptr.size(), "indptr of a type");
    khop::check_offsets(span_of(indptrs[i]), static_cast<std::int64_t>(indices[i].size()), "indptr of a type");
    khop::check_ids(span_of(indices[i]), sources - firsts[i], "source", threads);
    types.push_back({{span_of(indptrs[i]), span_of(indices[i])}, static_cast<std::int32_t>(firsts[i])});
    all += indices[i].size();
  }
  khop::check_size(merged.size(), all, "merged");
  khop::check_size(relations.size(), all, "relations");
  khop::merge_edges(types, {indptr.data(), indptr.size()}, {merged.data(), merged.size()}, {relations.data(), relations.size()},
                    threads);
}

}  // namespace
}  // namespace khop::bindings

void bind_mixture(nb::module_& module) {
  using namespace khop::bindings;
  using nb::arg;
  module.def("segment_mixture", &segment_mixture, arg("x").noconvert(), arg("weights").noconvert(), arg("indptr").noconvert(),
             arg("indices").noconvert(), arg("out").noconvert(), arg("threads"));
  module.def("segment_mixture_sources", &segment_mixture_sources, arg("gradient").noconvert(), arg("weights").noconvert(),
             arg("indptr").noconvert(), arg("rows").noconvert(), arg("positions").noconvert(), arg("out").noconvert(),
             arg("threads"));
  module.def("segment_mixture_weights", &segment_mixture_weights, arg("x").noconvert(), arg("gradient").noconvert(),
             arg("indptr").noconvert(), arg("indices").noconvert(), arg("out").noconvert(), arg("threads"));
  module.def("merge_edges", &merge_edges, arg("indptrs"), arg("indices"), arg("firsts"), arg("sources"),
             arg("indptr").noconvert(), arg("merged").noconvert(), arg("relations").noconvert(), arg("threads"));
}
