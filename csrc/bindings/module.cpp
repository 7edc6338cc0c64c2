#include "bindings.h"
#include "checks.h"

namespace {

// khop::DamagedArray as a ValueError with `array` and `problem`.
void bind_damage(nb::module_& module) {
  const nb::object type = nb::steal(PyErr_NewException("khop._core.DamagedArray", PyExc_ValueError, nullptr));
  module.attr("DamagedArray") = type;
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* payload) {
        try {
          std::rethrow_exception(thrown);
        } catch (const khop::DamagedArray& damage) {
          const nb::handle raised(static_cast<PyObject*>(payload));
          const nb::object error = raised(nb::str((std::string(damage.array) + ": " + damage.what()).c_str()));
          error.attr("array") = damage.array;
          error.attr("problem") = damage.what();
          PyErr_SetObject(raised.ptr(), error.ptr());
        }
      },
      type.ptr());
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "khop's native core. Call it through khop.kernels, which checks shapes and ids.";
  nb::set_leak_warnings(false);  // a graph may exist when Python exits
  bind_damage(module);
  bind_assign(module);
  bind_cooccurrences(module);
  bind_dense(module);
  bind_file_rows(module);
  bind_hop(module);
  bind_importing(module);
  bind_key_index(module);
  bind_links(module);
  bind_memory(module);
  bind_mixture(module);
  bind_owners(module);
  bind_random(module);
  bind_rules(module);
  bind_sampling(module);
}
