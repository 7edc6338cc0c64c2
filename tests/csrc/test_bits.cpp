// Results as recorded numbers: another processor, compiler or instruction set must give the same bits.
// scripts/test-aarch64 runs this program, cross-compiled, in an emulator.
#include <cstdint>
#include <span>
#include <vector>

#include "check.h"
#include "digest.h"
#include "graphs.h"
#include "levels.h"
#include "outlines.h"
#include "permutation.h"
#include "random.h"
#include "sample_hop.h"
#include "sample_weighted.h"
#include "segment.h"
#include "segment_softmax.h"
#include "weight_sums.h"

namespace {

using khop::HopOutput;
using khop::HopRequest;
using khop::Replacement;
using khop::testing::Rows;

constexpr std::int64_t kWidth = 37;

template <class T>
std::uint64_t bits(const std::vector<T>& values) {
  return khop::digest({reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(T)}, 1);
}

Rows<std::int32_t> graph() {
  std::vector<std::int64_t> degrees(300);
  for (std::size_t i = 0; i < degrees.size(); ++i) degrees[i] = static_cast<std::int64_t>(i * i % 97);
  return Rows<std::int32_t>(degrees);
}

std::vector<std::int64_t> frontier() {
  std::vector<std::int64_t> nodes(900);
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i] = static_cast<std::int64_t>(i * 7 % 300);
  return nodes;
}

// The edges of a draw by `sample`, as one number.
template <class Sample>
std::uint64_t drawn(const Rows<std::int32_t>& rows, Replacement replacement, Sample sample) {
  const auto nodes = frontier();
  const HopRequest request{nodes, {}, {}, 9, replacement, 0x0123456789abcdef, 5, 2};
  const auto capacity = static_cast<std::size_t>(edge_capacity(rows.csc(), request));
  std::vector<std::int32_t> neighbors(capacity);
  std::vector<std::int64_t> offsets(nodes.size() + 1), edges(capacity);
  const auto count = static_cast<std::size_t>(sample(request, HopOutput<std::int32_t>{offsets.data(), neighbors.data(), edges.data()}));
  edges.resize(count);
  return bits(edges);
}

std::vector<float> numbers(std::size_t count) {
  std::vector<float> found(count);
  for (std::size_t i = 0; i < count; ++i) found[i] = static_cast<float>(static_cast<int>(khop::mix64(i) % 20'001) - 10'000) / 777.0F;
  return found;
}

}  // namespace

TEST(a_permutation_has_the_recorded_bits) {
  std::vector<std::int64_t> entries(10'000);
  khop::permutation_slice(12345, 1'000'003, 77, entries);
  CHECK_EQUAL(bits(entries), std::uint64_t{8460560212028928859u});
}

TEST(uniform_draws_have_the_recorded_bits) {
  const auto rows = graph();
  const auto sample = [&](const auto& request, const auto& output) { return sample_hop(rows.csc(), request, output); };
  khop::testing::at_every_level([&] {
    CHECK_EQUAL(drawn(rows, Replacement::without, sample), std::uint64_t{17482564653157849393u});
    CHECK_EQUAL(drawn(rows, Replacement::with, sample), std::uint64_t{7641429687227494727u});
  });
}

TEST(weighted_draws_have_the_recorded_bits) {
  const auto rows = graph();
  std::vector<double> weights(rows.indices.size());
  for (std::size_t e = 0; e < weights.size(); ++e) weights[e] = 1.0 / static_cast<double>(1 + e % 11);
  std::vector<std::int64_t> sums(weights.size());
  khop::weight_sums(rows.indptr, std::span<const double>(weights), sums.data(), 2);
  CHECK_EQUAL(bits(sums), std::uint64_t{13315694897971083630u});
  const auto outline = khop::testing::outline_of(rows.indptr, sums);
  const auto sample = [&](const auto& request, const auto& output) {
    return khop::sample_weighted(rows.csc(), {sums, outline}, request, output);
  };
  khop::testing::at_every_level([&] { CHECK_EQUAL(drawn(rows, Replacement::without, sample), std::uint64_t{10122998817087086014u}); });
}

TEST(sums_of_floats_have_the_recorded_bits) {
  const auto rows = graph();
  const auto x = numbers(300 * kWidth);
  std::vector<float> out(x.size());
  khop::testing::at_every_level([&] {
    khop::segment_sum(x.data(), kWidth, rows.csc(), out.data(), 2);
    CHECK_EQUAL(bits(out), std::uint64_t{3944025083338829269u});
    khop::segment_mean(x.data(), kWidth, rows.csc(), out.data(), 2);
    CHECK_EQUAL(bits(out), std::uint64_t{10605441143700554960u});
  });
}

TEST(a_softmax_has_the_recorded_bits) {
  const auto rows = graph();
  const auto scores = numbers(rows.indices.size() * 4);
  std::vector<float> out(scores.size());
  khop::testing::at_every_level([&] {
    khop::segment_softmax(scores.data(), 4, rows.indptr, out.data(), 2);
    CHECK_EQUAL(bits(out), std::uint64_t{8506774211205422767u});
  });
}
