#include "bindings.h"

NB_MODULE(_core, module) {
  module.doc() = "khop's native core. Call it through khop.kernels, which checks shapes and ids.";
  nb::set_leak_warnings(false);  // a graph that is alive when Python ends is no news to anybody
  bind_assign(module);
  bind_cooccurrences(module);
  bind_dense(module);
  bind_hop(module);
  bind_links(module);
  bind_memory(module);
  bind_owners(module);
  bind_random(module);
  bind_rules(module);
  bind_sampling(module);
}
