#include "build_csc.h"

#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <vector>

#include "check.h"

namespace {

template <class Id, class Index>
struct Built {
  Built(const std::vector<Id>& sources, const std::vector<Id>& destinations, std::int64_t num_sources,
        std::int64_t num_destinations, int threads)
      : indptr(static_cast<std::size_t>(num_destinations) + 1), indices(sources.size()), order(sources.size()) {
    outside = khop::build_csc<Id, Index>({sources, destinations}, num_sources, indptr, indices, order, threads);
  }

  std::vector<std::int64_t> indptr;
  std::vector<Index> indices;
  std::vector<std::int64_t> order;
  khop::OutsideIds outside;
};

// Whole arrays are compared: under sanitizers, a check of each element takes most of the time of a test.
template <class Id, class Index>
void equals_a_stable_sort(const std::vector<Id>& sources, const std::vector<Id>& destinations, std::int64_t num_destinations,
                          std::initializer_list<int> threads) {
  std::vector<std::int64_t> order(sources.size()), indptr(static_cast<std::size_t>(num_destinations) + 1);
  std::vector<Index> indices(sources.size());
  for (const Id destination : destinations) ++indptr[static_cast<std::size_t>(destination) + 1];
  std::partial_sum(indptr.begin(), indptr.end(), indptr.begin());
  std::vector<std::int64_t> next(indptr.begin(), indptr.end() - 1);
  for (std::size_t edge = 0; edge < sources.size(); ++edge) {
    const auto place = static_cast<std::size_t>(next[static_cast<std::size_t>(destinations[edge])]++);
    order[place] = static_cast<std::int64_t>(edge);
    indices[place] = static_cast<Index>(sources[edge]);
  }
  for (const int count : threads) {
    const Built<Id, Index> built(sources, destinations, 1000, num_destinations, count);
    CHECK_EQUAL(built.outside.source, -1);
    CHECK_EQUAL(built.outside.destination, -1);
    CHECK(built.order == order);
    CHECK(built.indices == indices);
    CHECK(built.indptr == indptr);
  }
}

template <class Id, class Index>
void equals_a_stable_sort(std::size_t edges, std::int64_t num_destinations, std::uint64_t stride) {
  std::vector<Id> sources, destinations;
  for (std::uint64_t edge = 0; edge < edges; ++edge) {
    sources.push_back(static_cast<Id>(edge * 11 % 1000));
    destinations.push_back(static_cast<Id>(edge * edge * stride % static_cast<std::uint64_t>(num_destinations)));
  }
  equals_a_stable_sort<Id, Index>(sources, destinations, num_destinations, {1, 2, 5});
}

}  // namespace

TEST(edges_are_grouped_by_destination_in_input_order) {
  for (const std::int64_t num_destinations : {1, 2, 2047, 2048, 2049, 5000, 1 << 20}) {
    equals_a_stable_sort<std::int64_t, std::int32_t>(150'000, num_destinations, 3);
  }
  for (const std::size_t edges : {0, 1, 1000}) equals_a_stable_sort<std::int64_t, std::int32_t>(edges, 5000, 3);
  equals_a_stable_sort<std::int32_t, std::int32_t>(150'000, 5000, 3);
  equals_a_stable_sort<std::int64_t, std::int64_t>(150'000, 5000, 3);
}

TEST(all_edges_may_have_one_destination) { equals_a_stable_sort<std::int64_t, std::int32_t>(150'000, 5000, 0); }

TEST(many_edges_are_sorted_in_passes_and_a_hub_within_the_output) {
  constexpr std::size_t edges = 1'100'000;
  std::vector<std::int32_t> sources(edges), destinations(edges);
  for (const std::int64_t hub : {std::int64_t{0}, std::int64_t{700}, std::int64_t{4999}}) {
    for (std::size_t edge = 0; edge < edges; ++edge) {
      sources[edge] = static_cast<std::int32_t>(edge % 1000);
      destinations[edge] = static_cast<std::int32_t>(edge % 3 == 0 ? static_cast<std::size_t>(hub) : edge * 7919 % 5000);
    }
    equals_a_stable_sort<std::int32_t, std::int32_t>(sources, destinations, 5000, {1, 3});
  }
}

TEST(a_source_outside_is_the_first_one_in_all_passes) {
  constexpr std::size_t edges = 1'100'000;
  std::vector<std::int32_t> sources(edges, 1), destinations(edges);
  for (std::size_t edge = 0; edge < edges; ++edge) destinations[edge] = static_cast<std::int32_t>(edge * 7919 % 5000);
  sources[17] = 1000;      // its destination is of either half
  sources[18] = -1;
  CHECK_EQUAL((Built<std::int32_t, std::int32_t>(sources, destinations, 1000, 5000, 2).outside.source), 17);
}

TEST(a_block_has_no_more_destinations_than_16_bits_tell_apart) {
  CHECK_EQUAL(khop::block_shift(0), 0);
  CHECK_EQUAL(khop::block_shift(2047), 0);
  CHECK_EQUAL(khop::block_shift(2048), 1);
  CHECK_EQUAL(khop::block_shift((std::int64_t{1} << 26) - 1), 15);
  CHECK_EQUAL(khop::block_shift(std::int64_t{1} << 26), 16);
  CHECK_EQUAL(khop::block_shift(std::int64_t{1} << 27), 16);
  CHECK_EQUAL(khop::block_shift(std::int64_t{1} << 50), 16);
}

TEST(the_first_ids_outside_are_named_on_any_number_of_threads) {
  for (const int threads : {1, 3}) {
    std::vector<std::int64_t> good(300'000, 1), bad(300'000, 1);
    bad[200'000] = 7;
    bad[299'999] = -1;
    CHECK_EQUAL((Built<std::int64_t, std::int32_t>(bad, good, 7, 7, threads).outside.source), 200'000);
    CHECK_EQUAL((Built<std::int64_t, std::int32_t>(good, bad, 7, 7, threads).outside.destination), 200'000);
    CHECK_EQUAL((Built<std::int64_t, std::int32_t>(bad, good, 8, 7, threads).outside.source), 299'999);
  }
}
