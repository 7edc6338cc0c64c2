#include "bindings.h"
#include "permutation.h"
#include "random.h"

#include <stdexcept>
#include <string>

namespace khop::bindings {
namespace {

using Counters = nb::ndarray<const std::int64_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;

constexpr std::uint64_t kMostEntries = (std::uint64_t{1} << 63) - 1;

Out<std::int64_t> philox_rows(std::uint64_t key, Counters counters) {
  const std::size_t rows = counters.shape(0);
  Buffer<std::int64_t> words(4 * rows);
  {
    const nb::gil_scoped_release release;
    const std::int64_t* const from = counters.data();
    for (std::size_t i = 0; i < 4 * rows; i += 4) {
      const auto low = [&](std::size_t word) { return static_cast<std::uint32_t>(from[i + word]); };
      const Words block = philox(key, {low(0), low(1), low(2), low(3)});
      for (std::size_t word = 0; word < 4; ++word) words.data()[i + word] = block[word];
    }
  }
  return words.tensor({rows, 4});
}

Out<std::int64_t> permutation(std::uint64_t key, std::uint64_t count, std::uint64_t start, std::uint64_t stop) {
  if (start > stop || stop > count || count > kMostEntries) {
    throw std::invalid_argument("entries [" + std::to_string(start) + ", " + std::to_string(stop) + ") of " + std::to_string(count) +
                                ": must rise from 0 to at most their number, which is below 2^63");
  }
  const std::size_t length = stop - start;
  Buffer<std::int64_t> entries(length);
  if (length == 0) return entries.tensor({0});
  {
    const nb::gil_scoped_release release;
    permutation_slice(key, count, start, {entries.data(), length});
  }
  return entries.tensor({length});
}

}  // namespace
}  // namespace khop::bindings

void bind_random(nb::module_& module) {
  using namespace khop::bindings;
  module.def("philox", &philox_rows, nb::arg("key"), nb::arg("counters").noconvert());
  module.def("permutation_slice", &permutation, nb::arg("key"), nb::arg("count"), nb::arg("start"), nb::arg("stop"));
}
