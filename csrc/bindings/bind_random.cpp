#include "bindings.h"
#include "random.h"

#include <nanobind/stl/array.h>

void bind_random(nb::module_& module) {
  module.def("philox", &khop::philox, nb::arg("key"), nb::arg("counter"));
}
