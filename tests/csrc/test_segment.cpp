#include "segment.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bytes.h"
#include "check.h"
#include "levels.h"
#include "number.h"
#include "segment_max.h"

namespace {

constexpr std::int64_t kSources = 50;

// Rows of 0, 1, a few, and more edges than pass in one chunk or in one run; some edges repeat.
struct ManyRows {
  ManyRows() {
    for (int round = 0; round < 9; ++round) {
      for (const int degree : {0, 1, 5, 32, 0, 33, round == 4 ? 512 : round == 8 ? 1100 : 100}) {
        for (int i = 0; i < degree; ++i) {
          indices.push_back(static_cast<std::int32_t>((indices.size() / 2 * 17 + indices.size() % 3) % kSources));
        }
        indptr.push_back(static_cast<std::int64_t>(indices.size()));
      }
    }
  }

  khop::Edges csc() const { return {indptr, indices}; }
  std::int64_t rows() const { return static_cast<std::int64_t>(indptr.size()) - 1; }

  std::vector<std::int64_t> indptr{0};
  std::vector<std::int32_t> indices;
};

template <class T>
std::vector<T> some_rows(std::int64_t rows, std::int64_t width) {
  std::vector<T> x(static_cast<std::size_t>(rows * width));
  for (std::size_t i = 0; i < x.size(); ++i) {
    khop::Single<T>::store(&x[i], static_cast<khop::Accumulator<T>>((static_cast<int>(i * 7919 % 1000) - 500) / 7.0));
  }
  return x;
}

// The sum of a row's numbers in the order of RunSums.
template <class A>
A in_runs(std::vector<A> numbers) {
  do {
    std::vector<A> sums(std::max<std::size_t>(1, (numbers.size() + 511) / 512));
    for (std::size_t i = 0; i < numbers.size(); ++i) sums[i / 512] += numbers[i];
    numbers = sums;
  } while (numbers.size() > 1);
  return numbers.front();
}

// The sums of fold(0, value, edge) over each row's edges, then end(sum, degree), one number at a time.
template <class T, class Fold, class End>
std::vector<T> one_by_one(const std::vector<T>& x, std::int64_t width, const std::vector<std::int64_t>& indptr,
                          const std::vector<std::int32_t>& indices, Fold fold, End end) {
  std::vector<T> out((indptr.size() - 1) * static_cast<std::size_t>(width));
  for (std::size_t row = 0; row + 1 < indptr.size(); ++row) {
    for (std::int64_t column = 0; column < width; ++column) {
      std::vector<khop::Accumulator<T>> numbers;
      for (std::int64_t edge = indptr[row]; edge < indptr[row + 1]; ++edge) {
        const auto source = static_cast<std::int64_t>(indices[static_cast<std::size_t>(edge)]);
        const auto value = khop::Single<T>::load(&x[static_cast<std::size_t>(source * width + column)]);
        numbers.push_back(fold(khop::Accumulator<T>{0}, value, source));
      }
      khop::Single<T>::store(&out[row * static_cast<std::size_t>(width) + static_cast<std::size_t>(column)],
                             end(in_runs(numbers), indptr[row + 1] - indptr[row]));
    }
  }
  return out;
}

const auto add = [](auto sum, auto value, std::int64_t) { return sum + value; };
const auto keep = [](auto sum, std::int64_t) { return sum; };

// run(out, threads) gives `expected`, to the bit, at every level and on any number of threads.
template <class T, class Run>
void always_gives(const std::vector<T>& expected, Run run) {
  khop::testing::at_every_kernel_level([&] {
    for (const int threads : {1, 2, 5}) {
      std::vector<T> out(expected.size());
      run(out.data(), threads);
      CHECK(khop::testing::same_bytes(out, expected));
    }
  });
}

template <class T>
void sums_and_gradients(std::int64_t width) {
  using A = khop::Accumulator<T>;
  const ManyRows edges;
  const auto x = some_rows<T>(kSources, width);
  always_gives(one_by_one(x, width, edges.indptr, edges.indices, add, keep),
               [&](T* out, int threads) { khop::segment_sum(x.data(), width, edges.csc(), out, threads); });
  const auto mean = [](A sum, std::int64_t degree) { return degree > 0 ? sum / static_cast<A>(degree) : A{0}; };
  always_gives(one_by_one(x, width, edges.indptr, edges.indices, add, mean),
               [&](T* out, int threads) { khop::segment_mean(x.data(), width, edges.csc(), out, threads); });

  const auto gradient = some_rows<T>(edges.rows(), width);
  std::vector<std::int64_t> indptr(kSources + 1);
  std::vector<std::int32_t> rows(edges.indices.size());
  khop::transpose(edges.csc(), indptr, rows);
  const auto share = [&](A sum, A value, std::int64_t row) {
    const auto at = static_cast<std::size_t>(row);
    return sum + value * (A{1} / static_cast<A>(edges.indptr[at + 1] - edges.indptr[at]));
  };
  always_gives(one_by_one(gradient, width, indptr, rows, share, keep), [&](T* out, int threads) {
    const khop::Edges transposed{indptr, rows};
    khop::segment_mean_gradient(gradient.data(), width, transposed, edges.indptr, out, threads);
  });
}

template <class T>
void maxima_and_gradients(std::int64_t width) {
  const ManyRows edges;
  const auto x = some_rows<T>(kSources, width);
  const auto gradient = some_rows<T>(edges.rows(), width);
  std::vector<T> largest(gradient.size()), expected(x.size());
  std::vector<khop::Accumulator<T>> sums(x.size());
  std::vector<std::int32_t> winners(gradient.size(), -1);
  for (std::int64_t at = 0; at < static_cast<std::int64_t>(gradient.size()); ++at) {
    const std::int64_t row = at / width, column = at % width;
    const auto cell = static_cast<std::size_t>(at);
    khop::Single<T>::store(&largest[cell], 0);
    for (std::int64_t edge = edges.indptr[static_cast<std::size_t>(row)]; edge < edges.indptr[static_cast<std::size_t>(row) + 1]; ++edge) {
      const std::int32_t source = edges.indices[static_cast<std::size_t>(edge)];
      const T* value = &x[static_cast<std::size_t>(source * width + column)];
      if (winners[cell] >= 0 && !(khop::Single<T>::load(value) > khop::Single<T>::load(&largest[cell]))) continue;
      winners[cell] = source;
      largest[cell] = *value;
    }
    if (winners[cell] >= 0) {
      sums[static_cast<std::size_t>(winners[cell] * width + column)] += khop::Single<T>::load(&gradient[cell]);
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) khop::Single<T>::store(&expected[i], sums[i]);

  always_gives(largest, [&](T* out, int threads) {
    std::vector<std::int32_t> who(winners.size());
    khop::segment_max(x.data(), width, edges.csc(), out, who.data(), threads);
    CHECK(who == winners);
  });
  always_gives(largest, [&](T* out, int threads) {
    khop::segment_max(x.data(), width, edges.csc(), out, nullptr, threads);
  });
  std::vector<std::int64_t> indptr(kSources + 1);
  std::vector<std::int32_t> rows(edges.indices.size());
  khop::transpose(edges.csc(), indptr, rows);
  always_gives(expected, [&](T* out, int threads) {
    const khop::Edges transposed{indptr, rows};
    khop::segment_max_gradient(gradient.data(), width, transposed, winners.data(), out, threads);
  });
}

// One tile of every size, ends of rows that move tiles and groups back, and rows of several tiles.
constexpr std::int64_t kWidths[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 64, 65, 97, 100, 104, 105, 128, 193, 208, 260, 301};

}  // namespace

TEST(sums_means_and_gradients_are_the_same_bits_as_one_by_one) {
  for (const std::int64_t width : kWidths) {
    sums_and_gradients<float>(width);
    sums_and_gradients<double>(width);
    sums_and_gradients<khop::BFloat16>(width);
    sums_and_gradients<khop::Float16>(width);
  }
}

TEST(maxima_and_gradients_are_the_same_bits_as_one_by_one) {
  for (const std::int64_t width : kWidths) {
    maxima_and_gradients<float>(width);
    maxima_and_gradients<double>(width);
    maxima_and_gradients<khop::BFloat16>(width);
  }
}

TEST(no_rows_and_no_sources_are_fine) {
  const std::vector<std::int64_t> nothing{0}, empty_rows{0, 0, 0};
  float out[4] = {9, 9, 9, 9};
  khop::segment_sum<float>(nullptr, 2, {nothing, {}}, out, 2);
  CHECK_EQUAL(out[0], 9.0F);
  khop::segment_mean<float>(nullptr, 2, {empty_rows, {}}, out, 2);
  CHECK(std::ranges::all_of(out, [](float value) { return value == 0; }));
}

TEST(transposing_keeps_the_order_of_edges) {
  const std::vector<std::int64_t> indptr{0, 2, 2, 5};
  const std::vector<std::int32_t> indices{1, 3, 3, 1, 3};
  std::vector<std::int64_t> turned(5);
  std::vector<std::int32_t> rows(5);
  khop::transpose({indptr, indices}, turned, rows);
  CHECK((turned == std::vector<std::int64_t>{0, 0, 2, 2, 5}));
  CHECK((rows == std::vector<std::int32_t>{0, 2, 0, 2, 2}));
}
