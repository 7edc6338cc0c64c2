#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "assign.h"
#include "bindings.h"
#include "visit.h"

namespace khop::bindings {
namespace {

// First source, first destination, indptr, indices.
using EdgeArrays = std::tuple<std::int64_t, std::int64_t, In<std::int64_t>, AnyIn>;
// By type, member bit, by degree, capacity.
using Limit = std::tuple<std::vector<std::int64_t>, std::uint8_t, bool, std::int64_t>;

// Owns the arrays that an Assigner reads.
template <class Label>
class Assignment {
 public:
  Assignment(std::vector<std::int64_t> first_node, std::vector<EdgeArrays> edges, In<std::uint8_t> members, const std::vector<Limit>& limits,
             int parts, bool fennel, std::int64_t cluster_limit)
      : edges_(std::move(edges)),
        members_(std::move(members)),
        assigner_(settings(std::move(first_node), edges_, span_of(members_), limits, parts, fennel, cluster_limit)) {}

  template <void (Assigner<Label>::*pass)(std::int64_t, std::int64_t, int)>
  void run(std::int64_t begin, std::int64_t end, int threads) {
    const nb::gil_scoped_release release;
    (assigner_.*pass)(begin, end, threads);
  }

  std::int64_t block() const { return assigner_.block(); }

  std::int64_t num_cluster_blocks() {
    const nb::gil_scoped_release release;
    return assigner_.num_cluster_blocks();
  }

  Out<std::int32_t> parts() const { return copied<std::int32_t>(assigner_.parts()); }
  Out<std::int64_t> loads() const { return copied<std::int64_t>(assigner_.loads()); }

 private:
  static AssignSettings settings(std::vector<std::int64_t> first_node, const std::vector<EdgeArrays>& edges,
                                 std::span<const std::uint8_t> members, const std::vector<Limit>& limits, int parts, bool fennel,
                                 std::int64_t cluster_limit) {
    AssignSettings made{std::move(first_node), {}, members, {}, parts, fennel ? Score::fennel : Score::ldg, cluster_limit};
    for (const auto& [source, destination, indptr, indices] : edges) {
      InEdges in_edges{source, destination, span_of(indptr), {}, {}};
      if (indices.dtype() == nb::dtype<std::int32_t>()) {
        in_edges.narrow = typed_span<const std::int32_t>(indices);
      } else {
        in_edges.wide = typed_span<const std::int64_t>(indices);
      }
      made.edges.push_back(in_edges);
    }
    for (const auto& [by_type, member, by_degree, capacity] : limits) made.constraints.push_back({by_type, member, by_degree, capacity});
    return made;
  }

  template <class To, class From>
  static Out<To> copied(std::span<const From> values) {
    Buffer<To> copy(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) copy.data()[i] = static_cast<To>(values[i]);
    return copy.tensor({values.size()});
  }

  std::vector<EdgeArrays> edges_;
  In<std::uint8_t> members_;
  Assigner<Label> assigner_;
};

template <class Label>
void bind(nb::module_& module, const char* name) {
  using Class = Assignment<Label>;
  using Core = Assigner<Label>;
  nb::class_<Class>(module, name)
      .def(nb::init<std::vector<std::int64_t>, std::vector<EdgeArrays>, In<std::uint8_t>, const std::vector<Limit>&, int, bool, std::int64_t>(),
           nb::arg("first_node"), nb::arg("edges"), nb::arg("members"), nb::arg("limits"), nb::arg("parts"), nb::arg("fennel"),
           nb::arg("cluster_limit"))
      .def("cluster", &Class::template run<&Core::cluster>, nb::arg("begin"), nb::arg("end"), nb::arg("threads"))
      .def("block", &Class::block)
      .def("num_cluster_blocks", &Class::num_cluster_blocks)
      .def("place_clusters", &Class::template run<&Core::place_clusters>, nb::arg("begin"), nb::arg("end"), nb::arg("threads"))
      .def("stream", &Class::template run<&Core::stream>, nb::arg("begin"), nb::arg("end"), nb::arg("threads"))
      .def("refine", &Class::template run<&Core::refine>, nb::arg("begin"), nb::arg("end"), nb::arg("threads"))
      .def("parts", &Class::parts)
      .def("loads", &Class::loads);
}

}  // namespace
}  // namespace khop::bindings

void bind_assign(nb::module_& module) {
  khop::bindings::bind<std::uint32_t>(module, "Assigner32");
  khop::bindings::bind<std::uint64_t>(module, "Assigner64");
  module.attr("MOST_PARTS") = khop::Assigner<std::uint32_t>::kMostParts;
}
