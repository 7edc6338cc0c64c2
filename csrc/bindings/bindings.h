// What every binding file shares: array types, and handing a buffer to Python.
// Bindings check, convert, release the GIL and call; they hold no logic.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace nb = nanobind;

namespace khop::bindings {

// A contiguous CPU array that is only read. Anything with __dlpack__ or the buffer protocol is taken as it lies.
template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace khop::bindings

void bind_dense(nb::module_& module);
void bind_random(nb::module_& module);
