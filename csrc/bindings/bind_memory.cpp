#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bindings.h"

namespace {

std::tuple<std::size_t, std::size_t, std::size_t, std::size_t> buffer_pool_usage() {
  const khop::BufferPool::Usage usage = khop::buffer_pool().usage();
  return {usage.free_bytes, usage.lent_bytes, usage.reused, usage.fresh};
}

}  // namespace

void bind_memory(nb::module_& module) {
  module.def("buffer_pool_usage", &buffer_pool_usage);
  module.def("set_buffer_pool_limit", [](std::size_t limit_bytes) { khop::buffer_pool().set_limit(limit_bytes); },
             nb::arg("limit_bytes"));
}
