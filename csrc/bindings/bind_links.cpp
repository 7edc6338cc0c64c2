#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "bindings.h"
#include "checks.h"
#include "exclude_edges.h"
#include "negatives.h"

namespace khop::bindings {
namespace {

constexpr std::int64_t kMostPerPositive = (std::int64_t{1} << 31) - 1;

template <class Index>
using Kept = std::tuple<Out<std::int64_t>, Out<Index>, std::optional<Out<std::int64_t>>>;

template <class Index>
Kept<Index> exclude(Ids offsets, In<Index> sources, std::optional<Ids> ids, Ids rows, Ids excluded_sources,
                    Ids excluded_destinations) {
  const DrawnEdges<Index> drawn{span_of(rows), span_of(offsets), span_of(sources), optional_span(ids)};
  check_size(offsets.size(), rows.size() + 1, "offsets");
  check_offsets(drawn.offsets, static_cast<std::int64_t>(sources.size()), "offsets");
  if (ids) check_size(ids->size(), sources.size(), "ids");
  check_size(excluded_sources.size(), excluded_destinations.size(), "excluded_sources");
  std::optional<Buffer<std::int64_t>> kept_offsets, kept_ids;
  std::optional<Buffer<Index>> kept_sources;
  std::size_t count = 0;
  {
    const nb::gil_scoped_release release;
    kept_offsets.emplace(offsets.size());
    kept_sources.emplace(sources.size());
    if (ids) kept_ids.emplace(sources.size());
    const KeptEdges<Index> kept{kept_offsets->data(), kept_sources->data(), kept_ids ? kept_ids->data() : nullptr};
    count = static_cast<std::size_t>(exclude_edges(drawn, {span_of(excluded_sources), span_of(excluded_destinations)}, kept));
  }
  std::optional<Out<std::int64_t>> positions;
  if (kept_ids) positions = kept_ids->tensor({count});
  return {kept_offsets->tensor({offsets.size()}), kept_sources->tensor({count}), positions};
}

template <class Index>
std::tuple<Out<std::int64_t>, std::int64_t> negatives(std::int64_t count, std::optional<Ids> weights_before,
                                                      std::optional<Ids> partner_indptr, In<Index> partner_ranks,
                                                      std::optional<Ids> partner_weights_before, Ids sources, Ids positions,
                                                      std::optional<Ids> limits, std::int64_t per_positive, std::uint64_t key,
                                                      std::uint32_t stream) {
  const Candidates candidates{count, optional_span(weights_before)};
  const Partners<Index> partners{optional_span(partner_indptr), span_of(partner_ranks), optional_span(partner_weights_before)};
  const NegativeRequest request{span_of(sources), span_of(positions), optional_span(limits), per_positive, key, stream};
  if (count < 0 || per_positive < 0 || per_positive > kMostPerPositive) {
    throw std::invalid_argument("count " + std::to_string(count) + ", per_positive " + std::to_string(per_positive) +
                                ": neither may be negative, nor per_positive 2^31 or more");
  }
  if (partner_indptr && partner_indptr->size() == 0) throw std::invalid_argument("partner_indptr has no entry: it must begin with 0");
  if (weights_before) check_size(weights_before->size(), static_cast<std::size_t>(count) + 1, "weights_before");
  if (partner_weights_before) check_size(partner_weights_before->size(), partner_ranks.size(), "partner_weights_before");
  check_size(sources.size(), positions.size(), "sources");
  if (limits) check_size(limits->size(), positions.size(), "limits");
  const auto per_row = static_cast<std::size_t>(per_positive);
  Buffer<std::int64_t> ranks(positions.size() * per_row);
  std::int64_t culprit = -1;
  {
    const nb::gil_scoped_release release;
    culprit = draw_negatives(candidates, partners, request, ranks.data());
  }
  return {ranks.tensor({positions.size(), per_row}), culprit};
}

template <class Index>
void bind_index(nb::module_& module) {
  module.def("exclude_edges", &exclude<Index>, nb::arg("offsets").noconvert(), nb::arg("sources").noconvert(),
             nb::arg("ids").noconvert().none(), nb::arg("rows").noconvert(), nb::arg("excluded_sources").noconvert(),
             nb::arg("excluded_destinations").noconvert());
  module.def("draw_negatives", &negatives<Index>, nb::arg("count"), nb::arg("weights_before").noconvert().none(),
             nb::arg("partner_indptr").noconvert().none(), nb::arg("partner_ranks").noconvert(),
             nb::arg("partner_weights_before").noconvert().none(), nb::arg("sources").noconvert(),
             nb::arg("positions").noconvert(), nb::arg("limits").noconvert().none(), nb::arg("per_positive"), nb::arg("key"),
             nb::arg("stream"));
}

}  // namespace
}  // namespace khop::bindings

void bind_links(nb::module_& module) {
  khop::bindings::bind_index<std::int32_t>(module);
  khop::bindings::bind_index<std::int64_t>(module);
}
