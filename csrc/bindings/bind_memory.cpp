#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bindings.h"
#include "digest.h"
#include "memory.h"

namespace {

std::tuple<std::size_t, std::size_t, std::size_t, std::size_t> buffer_pool_usage() {
  const khop::BufferPool::Usage usage = khop::buffer_pool().usage();
  return {usage.free_bytes, usage.lent_bytes, usage.reused, usage.fresh};
}

khop::bindings::Out<std::uint8_t> pooled_bytes(std::size_t count) {
  return khop::bindings::Buffer<std::uint8_t>(count).tensor({count});
}

void expect_random_access(const khop::bindings::In<std::uint8_t>& bytes) {
  khop::expect_random_access(bytes.data(), bytes.size());
}

std::uint64_t digest(const khop::bindings::In<std::uint8_t>& bytes, int threads) {
  const nb::gil_scoped_release release;
  return khop::digest(khop::bindings::span_of(bytes), threads);
}

}  // namespace

void bind_memory(nb::module_& module) {
  module.def("pooled_bytes", &pooled_bytes, nb::arg("count"));
  module.def("expect_random_access", &expect_random_access, nb::arg("bytes").noconvert());
  module.def("digest", &digest, nb::arg("bytes").noconvert(), nb::arg("threads"));
  module.def("buffer_pool_usage", &buffer_pool_usage);
  module.def("set_buffer_pool_limit", [](std::size_t limit_bytes) { khop::buffer_pool().set_limit(limit_bytes); },
             nb::arg("limit_bytes"));
}
