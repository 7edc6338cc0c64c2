#include <nanobind/stl/tuple.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <tuple>

#include "bindings.h"
#include "checks.h"
#include "file_rows.h"

namespace khop::bindings {
namespace {

using OutBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::tuple<std::int64_t, int> read_file_rows(int file, std::int64_t first_byte, std::int64_t row_bytes, std::int64_t rows,
                                             const Ids& ids, std::int64_t window, int threads, const OutBytes& out) {
  std::size_t bytes = 0;
  if (row_bytes < 1 || __builtin_mul_overflow(ids.size(), static_cast<std::size_t>(row_bytes), &bytes)) {
    throw std::invalid_argument("rows of " + std::to_string(row_bytes) + " bytes: a row has 1 or more");
  }
  check_size(out.size(), bytes, "out");
  const nb::gil_scoped_release release;
  const ReadFailure failure = khop::read_file_rows({file, first_byte, row_bytes, rows}, span_of(ids), window, threads,
                                                   reinterpret_cast<std::byte*>(out.data()));
  return {failure.row, failure.error};
}

}  // namespace
}  // namespace khop::bindings

void bind_file_rows(nb::module_& module) {
  using nb::arg;
  module.def("read_file_rows", &khop::bindings::read_file_rows, arg("file"), arg("first_byte"), arg("row_bytes"), arg("rows"),
             arg("ids").noconvert(), arg("window"), arg("threads"), arg("out").noconvert());
  module.def("expect_scattered_reads", &khop::expect_scattered_reads, arg("file"));
  module.def("file_system_type", &khop::file_system_type, arg("file"));
}
