#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bindings.h"

namespace {

std::tuple<std::size_t, std::size_t, std::size_t, std::size_t> buffer_pool_usage() {
  const khop::BufferPool::Usage usage = khop::buffer_pool().usage();
  return {usage.free_bytes, usage.lent_bytes, usage.reused, usage.fresh};
}

khop::bindings::Out<std::uint8_t> pooled_bytes(std::size_t count) {
  return khop::bindings::Buffer<std::uint8_t>(count).tensor({count});
}

}  // namespace

void bind_memory(nb::module_& module) {
  module.def("pooled_bytes", &pooled_bytes, nb::arg("count"));
  module.def("buffer_pool_usage", &buffer_pool_usage);
  module.def("set_buffer_pool_limit", [](std::size_t limit_bytes) { khop::buffer_pool().set_limit(limit_bytes); },
             nb::arg("limit_bytes"));
}
