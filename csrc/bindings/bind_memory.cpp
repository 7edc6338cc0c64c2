#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bindings.h"
#include "digest.h"
#include "memory.h"

namespace khop::bindings {
namespace {

std::tuple<std::size_t, std::size_t, std::size_t, std::size_t> buffer_pool_usage() {
  const khop::BufferPool::Usage usage = khop::ordinary_pool().usage();
  return {usage.free_bytes, usage.lent_bytes, usage.reused, usage.fresh};
}

std::tuple<std::size_t, std::size_t> pinned_pool_usage() {
  const khop::BufferPool::Usage usage = khop::pinned_pool().usage();
  return {usage.pinned_bytes, usage.refused};
}

// Addresses of functions in the runtime that torch has loaded: the core does not link against any.
void pin_buffer_pool(std::uintptr_t select_device, std::uintptr_t pin, std::uintptr_t unpin, std::uintptr_t last_error, int device) {
  khop::Pinning pinning{.device = device};
  pinning.select_device = reinterpret_cast<decltype(pinning.select_device)>(select_device);
  pinning.pin = reinterpret_cast<decltype(pinning.pin)>(pin);
  pinning.unpin = reinterpret_cast<decltype(pinning.unpin)>(unpin);
  pinning.last_error = reinterpret_cast<decltype(pinning.last_error)>(last_error);
  const nb::gil_scoped_release release;
  khop::pinned_pool().set_pinning(pinning);
}

Out<std::uint8_t> pooled_bytes(std::size_t count) {
  return Buffer<std::uint8_t>(count).tensor({count});
}

// The advice returns immediately, but read requests may wait for the disk's queue.
template <auto advise>
void advised(const Bytes& bytes) {
  const nb::gil_scoped_release release;
  advise(bytes.data(), bytes.size());
}

std::uint64_t digest(const In<std::uint8_t>& bytes, int threads) {
  const nb::gil_scoped_release release;
  return khop::digest(khop::bindings::span_of(bytes), threads);
}

}  // namespace
}  // namespace khop::bindings

void bind_memory(nb::module_& module) {
  using namespace khop::bindings;
  module.def("pooled_bytes", &pooled_bytes, nb::arg("count"));
  module.def("expect_random_access", &advised<khop::expect_random_access>, nb::arg("bytes").noconvert());
  module.def("read_in_background", &advised<khop::read_in_background>, nb::arg("bytes").noconvert());
  module.def("expect_sparse_reads", &advised<khop::expect_sparse_reads>, nb::arg("bytes").noconvert());
  module.def("forget_sparse_reads", [](std::uintptr_t address) { khop::forget_sparse_reads(reinterpret_cast<void*>(address)); },
             nb::arg("address"));
  module.def("digest", &digest, nb::arg("bytes").noconvert(), nb::arg("threads"));
  module.def("buffer_pool_usage", &buffer_pool_usage);
  module.def("pinned_pool_usage", &pinned_pool_usage);
  module.def("use_pinned_pool", &khop::use_pinned_pool, nb::arg("is_chosen"));
  module.def("pin_buffer_pool", &pin_buffer_pool, nb::arg("select_device"), nb::arg("pin"), nb::arg("unpin"), nb::arg("last_error"),
             nb::arg("device"));
  module.def("set_buffer_pool_limit", [](std::size_t limit_bytes) {
               khop::ordinary_pool().set_limit(limit_bytes);
               khop::pinned_pool().set_limit(limit_bytes);
             },
             nb::arg("limit_bytes"));
}
