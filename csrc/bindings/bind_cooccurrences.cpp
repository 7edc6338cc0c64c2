#include "bindings.h"
#include "checks.h"
#include "cooccurrences.h"

#include <nanobind/stl/tuple.h>

#include <optional>
#include <stdexcept>
#include <tuple>

namespace khop::bindings {
namespace {

template <class Index>
using Pairs = std::tuple<Out<std::int64_t>, Out<Index>, Out<std::int32_t>>;

template <class Index>
Pairs<Index> cooccurrences(Offsets there_indptr, In<Index> there_indices, Offsets back_indptr, In<Index> back_indices,
                          std::int64_t min_count, int threads) {
  const Csc<Index> there{span_of(there_indptr), span_of(there_indices)}, back{span_of(back_indptr), span_of(back_indices)};
  if (min_count < 1) throw std::invalid_argument("min_count " + std::to_string(min_count) + ": must be at least 1");
  {
    const nb::gil_scoped_release release;
    check_offsets(there.indptr, static_cast<std::int64_t>(there.indices.size()), "indptr");
    check_offsets(back.indptr, static_cast<std::int64_t>(back.indices.size()), "indptr");
    check_ids(there.indices, back.rows(), "source", threads);
    check_ids(back.indices, there.rows(), "source", threads);
  }
  Buffer<std::int64_t> indptr(there.indptr.size());
  std::optional<Buffer<Index>> indices;
  std::optional<Buffer<std::int32_t>> counts;
  std::size_t pairs = 0;
  {
    const nb::gil_scoped_release release;
    Cooccurrences<Index> found(there, back, min_count, threads);
    pairs = static_cast<std::size_t>(found.num_pairs());
    indices.emplace(pairs);
    counts.emplace(pairs);
    found.move_into({indptr.data(), there.indptr.size()}, indices->data(), counts->data());
  }
  return {indptr.tensor({there.indptr.size()}), indices->tensor({pairs}), counts->tensor({pairs})};
}

template <class Index>
void bind(nb::module_& module) {
  module.def("cooccurrences", &cooccurrences<Index>, nb::arg("there_indptr").noconvert(), nb::arg("there_indices").noconvert(),
             nb::arg("back_indptr").noconvert(), nb::arg("back_indices").noconvert(), nb::arg("min_count"), nb::arg("threads"));
}

}  // namespace
}  // namespace khop::bindings

void bind_cooccurrences(nb::module_& module) {
  khop::bindings::bind<std::int32_t>(module);
  khop::bindings::bind<std::int64_t>(module);
}
