#include "known_edges.h"

namespace khop {

template <class Id>
std::size_t known_edges(const NodeIndex& index, const EdgeRows<Id>& rows, const KnownEdges& output) {
  index.find(rows.nodes, output.local);
  std::size_t kept = 0;
  output.offsets[0] = 0;
  for (std::size_t row = 0; row + 1 < rows.offsets.size(); ++row) {
    const auto last = static_cast<std::size_t>(rows.offsets[row + 1]);
    for (auto i = static_cast<std::size_t>(rows.offsets[row]); i < last; ++i) {
      // Without a branch, which would be unpredictable.
      const std::int32_t local = output.local[i];
      output.local[kept] = local;
      output.edges[kept] = rows.edges[i];
      kept += local >= 0;
    }
    output.offsets[row + 1] = static_cast<std::int64_t>(kept);
  }
  return kept;
}

template std::size_t known_edges(const NodeIndex&, const EdgeRows<std::int32_t>&, const KnownEdges&);
template std::size_t known_edges(const NodeIndex&, const EdgeRows<std::int64_t>&, const KnownEdges&);

}  // namespace khop
