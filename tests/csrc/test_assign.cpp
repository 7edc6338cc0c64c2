#include "assign.h"

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.h"

namespace {

constexpr int kClique = 100, kNodes = 2 * kClique;

// Two cliques that two edges join.
struct Cliques {
  std::vector<std::int64_t> indptr{0};
  std::vector<std::int32_t> indices;

  Cliques() {
    for (int node = 0; node < kNodes; ++node) {
      const int base = node / kClique * kClique;
      for (int other = base; other < base + kClique; ++other) {
        if (other != node) indices.push_back(other);
      }
      if (node % kClique < 2) indices.push_back((node + kClique) % kNodes);
      indptr.push_back(static_cast<std::int64_t>(indices.size()));
    }
  }

  khop::AssignSettings settings(std::int64_t capacity) const {
    khop::AssignSettings made;
    made.first_node = {0, 0, kNodes};  // the first type has no nodes
    made.edges = {{0, 0, std::span(indptr).first(1), {}, {}}, {0, 0, indptr, indices, {}}};
    made.constraints = {{{1, 1}, 0, false, capacity}};
    made.cluster_limit = kClique;
    return made;
  }
};

template <class Label>
std::vector<std::uint16_t> assigned(int threads) {
  const Cliques cliques;
  khop::Assigner<Label> assigner(cliques.settings(kClique));
  assigner.cluster(0, kNodes, threads);
  assigner.cluster(0, kNodes, threads);
  assigner.place_clusters(0, assigner.num_cluster_blocks(), threads);
  assigner.stream(0, kNodes, threads);
  assigner.refine(0, kNodes, threads);
  return {assigner.parts().begin(), assigner.parts().end()};
}

}  // namespace

TEST(cliques_come_apart_where_they_are_joined) {
  const std::vector<std::uint16_t> parts = assigned<std::uint32_t>(1);
  for (std::size_t node = 0; node < kNodes; ++node) CHECK_EQUAL(parts[node], parts[node / kClique * kClique]);
  CHECK(parts[0] != parts[kClique]);
  CHECK(assigned<std::uint64_t>(3) == parts);
}

TEST(no_part_takes_more_than_it_has_room_for) {
  const Cliques cliques;
  khop::Assigner<std::uint32_t> assigner(cliques.settings(kClique));
  assigner.stream(0, kNodes, 1);
  assigner.refine(0, kNodes, 1);
  CHECK_EQUAL(assigner.loads()[0], kClique);
  CHECK_EQUAL(assigner.loads()[1], kClique);
}

TEST(where_no_part_has_room_the_emptiest_takes_the_node) {
  const Cliques cliques;
  khop::Assigner<std::uint32_t> assigner(cliques.settings(1));
  assigner.stream(0, kNodes, 1);
  CHECK_EQUAL(assigner.loads()[0], kClique);
  CHECK_EQUAL(assigner.loads()[1], kClique);
}

TEST(settings_and_spans_that_do_not_fit_are_refused) {
  const Cliques cliques;
  using Assigner = khop::Assigner<std::uint32_t>;
  const auto refused = [&](const auto& change) {
    khop::AssignSettings settings = cliques.settings(kClique);
    change(settings);
    CHECK_THROWS(std::invalid_argument, Assigner(std::move(settings)));
  };
  refused([](khop::AssignSettings& settings) { settings.first_node.clear(); });
  refused([](khop::AssignSettings& settings) { settings.parts = 0; });
  refused([](khop::AssignSettings& settings) { settings.constraints.clear(); });
  refused([](khop::AssignSettings& settings) { settings.constraints[0].by_type.clear(); });
  refused([](khop::AssignSettings& settings) { settings.edges[1].indptr = settings.edges[1].indptr.first(2); });
  refused([](khop::AssignSettings& settings) { settings.edges[1].first_source = 1; });
  Assigner assigner(cliques.settings(kClique));
  CHECK_THROWS(std::invalid_argument, assigner.refine(0, kNodes, 1));
  CHECK_THROWS(std::invalid_argument, assigner.stream(0, kNodes + 1, 1));
  CHECK_THROWS(std::invalid_argument, assigner.place_clusters(0, 1, 1));
  assigner.num_cluster_blocks();
  CHECK_THROWS(std::invalid_argument, assigner.cluster(0, kNodes, 1));
}
