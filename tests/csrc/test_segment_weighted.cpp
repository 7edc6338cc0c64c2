#include "segment_weighted.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "bytes.h"
#include "check.h"
#include "levels.h"

namespace {

constexpr std::int64_t kSources = 11;

struct Graph {
  std::vector<std::int64_t> indptr{0};
  std::vector<std::int32_t> indices;
};

Graph some_graph() {
  Graph graph;
  for (int round = 0; round < 30; ++round) {
    for (const int degree : {0, 1, 5, 33, 70}) {
      for (int edge = 0; edge < degree; ++edge) graph.indices.push_back((round + edge * 7) % kSources);
      graph.indptr.push_back(static_cast<std::int64_t>(graph.indices.size()));
    }
  }
  return graph;
}

template <class T>
std::vector<T> some_numbers(std::int64_t count, int seed) {
  std::vector<T> numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    khop::Single<T>::store(&numbers[i], static_cast<khop::Accumulator<T>>((static_cast<int>((i + seed) * 7919 % 1000) - 500) / 40.0));
  }
  return numbers;
}

template <class T>
void is_the_same_everywhere(std::int64_t width, std::int64_t heads) {
  using A = khop::Accumulator<T>;
  const Graph graph = some_graph();
  const khop::Edges edges{graph.indptr, graph.indices};
  const auto count = static_cast<std::int64_t>(graph.indices.size());
  const auto x = some_numbers<T>(kSources * width, 1), gradient = some_numbers<T>(edges.rows() * width, 2);
  const auto weights = some_numbers<A>(count * heads, 3);
  std::vector<std::vector<T>> sums;
  std::vector<std::vector<A>> dots;
  khop::testing::at_every_kernel_level([&] {
    for (const int threads : {1, 2, 5}) {
      std::vector<T> sum(static_cast<std::size_t>(edges.rows() * width));
      std::vector<A> dot(static_cast<std::size_t>(count * heads));
      khop::segment_weighted_sum(x.data(), width, weights.data(), heads, edges, sum.data(), threads);
      khop::segment_weighted_sum_gradient(x.data(), width, gradient.data(), heads, edges, dot.data(), threads);
      sums.push_back(sum);
      dots.push_back(dot);
    }
  });
  for (const auto& sum : sums) CHECK(khop::testing::same_bytes(sum, sums.front()));
  for (const auto& dot : dots) CHECK(khop::testing::same_bytes(dot, dots.front()));
}

}  // namespace

TEST(weighted_sums_are_the_same_bits_on_any_number_of_threads_and_at_every_level) {
  for (const auto& [width, heads] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {1, 1}, {6, 3}, {64, 4}, {64, 8}, {33, 1}, {120, 3}}) {
    is_the_same_everywhere<float>(width, heads);
    is_the_same_everywhere<double>(width, heads);
    is_the_same_everywhere<khop::BFloat16>(width, heads);
  }
}

TEST(weighted_sums_and_their_gradient_are_what_their_formulas_say) {
  const Graph graph = some_graph();
  const khop::Edges edges{graph.indptr, graph.indices};
  constexpr std::int64_t width = 12, heads = 3;
  const auto count = static_cast<std::int64_t>(graph.indices.size());
  const auto x = some_numbers<double>(kSources * width, 1), gradient = some_numbers<double>(edges.rows() * width, 2);
  const auto weights = some_numbers<double>(count * heads, 3);
  std::vector<double> sum(static_cast<std::size_t>(edges.rows() * width)), dot(static_cast<std::size_t>(count * heads));
  khop::segment_weighted_sum(x.data(), width, weights.data(), heads, edges, sum.data(), 1);
  khop::segment_weighted_sum_gradient(x.data(), width, gradient.data(), heads, edges, dot.data(), 1);
  std::vector<double> dots(dot.size());
  for (std::int64_t row = 0; row < edges.rows(); ++row) {
    std::vector<double> expected(width);
    for (auto edge = graph.indptr[row]; edge < graph.indptr[row + 1]; ++edge) {
      for (std::int64_t column = 0; column < width; ++column) {
        const double value = x[graph.indices[edge] * width + column];
        expected[column] += value * weights[edge * heads + column / 4];
        dots[edge * heads + column / 4] += value * gradient[row * width + column];
      }
    }
    for (std::int64_t column = 0; column < width; ++column) CHECK(sum[row * width + column] == expected[column]);
  }
  for (std::size_t i = 0; i < dots.size(); ++i) CHECK(std::abs(dots[i] - dot[i]) <= 1e-9);
}
