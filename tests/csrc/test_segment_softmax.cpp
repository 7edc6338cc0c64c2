#include "segment_softmax.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "bytes.h"
#include "check.h"
#include "levels.h"
#include "number.h"

namespace {

std::vector<std::int64_t> some_rows() {
  std::vector<std::int64_t> indptr{0};
  for (int round = 0; round < 40; ++round) {
    for (const int degree : {0, 1, 5, 16, 17, 100}) indptr.push_back(indptr.back() + degree);
  }
  return indptr;
}

template <class T>
std::vector<T> some_scores(std::int64_t count) {
  std::vector<T> scores(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < scores.size(); ++i) {
    khop::Single<T>::store(&scores[i], static_cast<khop::Accumulator<T>>((static_cast<int>(i * 7919 % 1000) - 500) / 40.0));
  }
  return scores;
}

template <class T>
void is_the_same_everywhere(std::int64_t heads) {
  const auto indptr = some_rows();
  const auto scores = some_scores<T>(indptr.back() * heads);
  std::vector<std::vector<T>> results, gradients;
  khop::testing::at_every_kernel_level([&] {
    for (const int threads : {1, 2, 5}) {
      std::vector<T> out(scores.size()), gradient(scores.size());
      khop::segment_softmax(scores.data(), heads, indptr, out.data(), threads);
      khop::segment_softmax_gradient(out.data(), scores.data(), heads, indptr, gradient.data(), threads);
      results.push_back(out);
      gradients.push_back(gradient);
    }
  });
  for (const auto& result : results) CHECK(khop::testing::same_bytes(result, results.front()));
  for (const auto& gradient : gradients) CHECK(khop::testing::same_bytes(gradient, gradients.front()));
}

}  // namespace

TEST(softmax_is_the_same_bits_on_any_number_of_threads_and_at_every_level) {
  for (const std::int64_t heads : {0, 1, 3, 8}) {
    is_the_same_everywhere<float>(heads);
    is_the_same_everywhere<double>(heads);
    is_the_same_everywhere<khop::BFloat16>(heads);
  }
}

TEST(softmax_is_what_its_formula_says) {
  const auto indptr = some_rows();
  const auto scores = some_scores<double>(indptr.back());
  std::vector<double> out(scores.size());
  khop::segment_softmax(scores.data(), 1, indptr, out.data(), 1);
  for (std::size_t row = 0; row + 1 < indptr.size(); ++row) {
    double sum = 0;
    for (auto edge = indptr[row]; edge < indptr[row + 1]; ++edge) sum += std::exp(scores[static_cast<std::size_t>(edge)]);
    for (auto edge = indptr[row]; edge < indptr[row + 1]; ++edge) {
      const auto at = static_cast<std::size_t>(edge);
      CHECK(std::abs(out[at] / (std::exp(scores[at]) / sum) - 1) < 1e-14);
    }
  }
}
