#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "checks.h"
#include "deal_edges.h"
#include "exact_sum.h"
#include "id_table.h"
#include "insert_rows.h"
#include "visit.h"

namespace khop::bindings {
namespace {

using IdsInto = Into<std::int64_t>;

TextKeys text_keys(const Offsets& offsets, const Bytes& bytes) {
  check_offset_span(span_of(offsets), bytes.size());
  return {span_of(offsets), reinterpret_cast<const char*>(bytes.data())};
}

std::span<std::int64_t> room_for(const IdsInto& ids, std::int64_t keys) {
  check_size(ids.size(), static_cast<std::size_t>(keys), "ids");
  return typed_span<std::int64_t>(ids);
}

constexpr std::int64_t kMostKeys = (std::int64_t{1} << 40) - 2;

template <class Pool>
void bind_table(nb::module_& module, const char* name) {
  using Table = IdTable<Pool>;
  nb::class_<Table>(module, name)
      .def(
          "__init__",
          [](Table* table, std::int64_t expected) {
            if (expected < 0 || expected > kMostKeys)
              throw std::invalid_argument("expected " + std::to_string(expected) + ": is 0 to 2^40 - 2 keys");
            new (table) Table(expected);
          },
          nb::arg("expected"))
      .def("__len__", &Table::size)
      .def("spill_beyond", &Table::spill_beyond, nb::arg("bytes"), nb::arg("folder"))
      .def_prop_ro("is_spilled", &Table::is_spilled)
      .def_prop_ro("nbytes", &Table::bytes);
}

// A full disk is an OSError.
void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const std::system_error& found) {
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(found.code().value(), found.what()).ptr());
  }
}

// fn(keys) with the GIL released.
template <class Fn>
auto with_text(const Offsets& offsets, const Bytes& bytes, Fn&& fn) {
  const nb::gil_scoped_release release;
  return fn(text_keys(offsets, bytes));
}

std::int64_t append_text(IdTable<TextPool>& table, const Offsets& offsets, const Bytes& bytes) {
  return with_text(offsets, bytes, [&](TextKeys keys) { return table.append(keys); });
}

std::int64_t append_integers(IdTable<IntegerPool>& table, const Values& values) {
  const nb::gil_scoped_release release;
  return table.append({span_of(values)});
}

void add_text(IdTable<TextPool>& table, const Offsets& offsets, const Bytes& bytes, const IdsInto& ids) {
  with_text(offsets, bytes, [&](TextKeys keys) { table.add(keys, room_for(ids, keys.size())); });
}

void add_integers(IdTable<IntegerPool>& table, const Values& values, const IdsInto& ids) {
  const nb::gil_scoped_release release;
  const IntegerKeys keys{span_of(values)};
  table.add(keys, room_for(ids, keys.size()));
}

void find_text(const IdTable<TextPool>& table, const Offsets& offsets, const Bytes& bytes, const IdsInto& ids) {
  with_text(offsets, bytes, [&](TextKeys keys) { table.find(keys, room_for(ids, keys.size())); });
}

void find_integers(const IdTable<IntegerPool>& table, const Values& values, const IdsInto& ids) {
  const nb::gil_scoped_release release;
  const IntegerKeys keys{span_of(values)};
  table.find(keys, room_for(ids, keys.size()));
}

void check_known(const Values& ids, std::int64_t count) { check_ids(span_of(ids), count, "key", 1); }

// Offsets and bytes of the keys of some ids.
std::tuple<Out<std::int64_t>, Out<std::uint8_t>> text_of(const IdTable<TextPool>& table, const Values& ids) {
  Buffer<std::int64_t> offsets(ids.size() + 1);
  std::int64_t end = 0;
  {
    const nb::gil_scoped_release release;
    check_known(ids, table.size());
    for (std::size_t at = 0; at < ids.size(); ++at) {
      offsets.data()[at] = end;
      end += static_cast<std::int64_t>(table.pool()[ids.data()[at]].size());
    }
    offsets.data()[ids.size()] = end;
  }
  Buffer<std::uint8_t> bytes(static_cast<std::size_t>(end));
  {
    const nb::gil_scoped_release release;
    std::uint8_t* to = bytes.data();
    for (std::size_t at = 0; at < ids.size(); ++at) {
      const auto key = table.pool()[ids.data()[at]];
      to = std::copy(key.begin(), key.end(), to);
    }
  }
  return {offsets.tensor({ids.size() + 1}), bytes.tensor({static_cast<std::size_t>(end)})};
}

Out<std::int64_t> integers_of(const IdTable<IntegerPool>& table, const Values& ids) {
  Buffer<std::int64_t> keys(ids.size());
  {
    const nb::gil_scoped_release release;
    check_known(ids, table.size());
    for (std::size_t at = 0; at < ids.size(); ++at) keys.data()[at] = table.pool()[ids.data()[at]];
  }
  return keys.tensor({ids.size()});
}

void check_parts(int skip, int bits) {
  if (skip < 0 || bits < 0 || bits > 8 || skip + bits > 64) throw std::invalid_argument("parts are named by up to 8 bits of 64");
}

void text_parts(const Offsets& offsets, const Bytes& bytes, int skip, int bits, const Into<std::uint8_t>& part) {
  check_parts(skip, bits);
  with_text(offsets, bytes, [&](TextKeys keys) {
    check_size(part.size(), static_cast<std::size_t>(keys.size()), "part");
    key_parts(keys, skip, bits, typed_span<std::uint8_t>(part));
  });
}

void integer_parts(const Values& values, int skip, int bits, const Into<std::uint8_t>& part) {
  check_parts(skip, bits);
  check_size(part.size(), values.size(), "part");
  const nb::gil_scoped_release release;
  key_parts(IntegerKeys{span_of(values)}, skip, bits, typed_span<std::uint8_t>(part));
}

std::int64_t deal_edges(const AnyIn& destinations, std::int64_t first, int shift, const Into<std::int64_t>& begin,
                        const Into<std::uint32_t>& order) {
  if (begin.size() == 0) throw std::invalid_argument("begin has no entry: one more than ranges is needed");
  if (shift < 0 || shift > 62) throw std::invalid_argument("shift " + std::to_string(shift) + ": is 0 to 62");
  check_size(order.size(), destinations.size(), "order");
  return visit_index(destinations, [&](auto id) {
    const nb::gil_scoped_release release;
    return khop::deal_edges(typed_span<const decltype(id)>(destinations), first, shift, typed_span<std::int64_t>(begin),
                            typed_span<std::uint32_t>(order));
  });
}

void take_rows(const AnyIn& table, std::int64_t row_bytes, const In<std::uint32_t>& order, const AnyInto& out) {
  if (row_bytes < 1) throw std::invalid_argument("row_bytes " + std::to_string(row_bytes) + ": must be positive");
  const auto width = static_cast<std::size_t>(row_bytes);
  check_size(out.nbytes(), order.size() * width, "out, in bytes,");
  const auto rows = static_cast<std::int64_t>(table.nbytes() / width);
  const nb::gil_scoped_release release;
  const std::int64_t outside =
      khop::take_rows(static_cast<const std::byte*>(table.data()), rows, width, span_of(order), static_cast<std::byte*>(out.data()));
  if (outside >= 0) throw std::invalid_argument("row at position " + std::to_string(outside) + ": there are " + std::to_string(rows));
}

void check_whole_rows(const AnyIn& table, std::size_t width, const char* name) {
  if (table.nbytes() % width != 0)
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(table.nbytes()) + " bytes: must be whole rows of " +
                                std::to_string(width));
}

void insert_rows(const AnyIn& table, std::int64_t row_bytes, const In<std::int64_t>& at, const AnyIn& added, const AnyInto& out) {
  if (row_bytes < 1) throw std::invalid_argument("row_bytes " + std::to_string(row_bytes) + ": must be positive");
  const auto width = static_cast<std::size_t>(row_bytes);
  check_whole_rows(table, width, "table");
  check_whole_rows(added, width, "added");
  check_size(at.size(), added.nbytes() / width, "at");
  check_size(out.nbytes(), table.nbytes() + added.nbytes(), "out, in bytes,");
  const auto rows = static_cast<std::int64_t>(table.nbytes() / width);
  const nb::gil_scoped_release release;
  const std::int64_t wrong = khop::insert_rows(static_cast<const std::byte*>(table.data()), rows, width, span_of(at),
                                               static_cast<const std::byte*>(added.data()), static_cast<std::byte*>(out.data()));
  if (wrong >= 0)
    throw std::invalid_argument("place " + std::to_string(at.data()[wrong]) + " at position " + std::to_string(wrong) +
                                ": places must ascend in [0, " + std::to_string(rows) + "]");
}

std::int64_t add_exactly(ExactSums& sums, const AnyIn& numbers) {
  return visit<double, float, std::int64_t>(numbers, [&](auto number) {
    const nb::gil_scoped_release release;
    return khop::add_exactly(sums, typed_span<const decltype(number)>(numbers));
  });
}

template <class Limbs>
std::vector<std::int64_t> as_vector(const Limbs& limbs) {
  return {limbs.begin(), limbs.end()};
}

void bind_sums(nb::module_& module) {
  nb::class_<ExactSums>(module, "ExactSums")
      .def(nb::init<>())
      .def_ro("count", &ExactSums::count)
      .def_ro("missing", &ExactSums::missing)
      .def_ro("minimum", &ExactSums::minimum)
      .def_ro("maximum", &ExactSums::maximum)
      .def("sum_limbs", [](ExactSums& sums) { return as_vector(sums.sum.carried()); })
      .def("square_limbs", [](ExactSums& sums) { return as_vector(sums.squares.carried()); });
  module.def("add_exactly", &add_exactly, nb::arg("sums"), nb::arg("numbers").noconvert());
  module.attr("SUM_SHIFT") = kSumShift;
  module.attr("SQUARE_SHIFT") = kSquareShift;
}

}  // namespace
}  // namespace khop::bindings

void bind_importing(nb::module_& module) {
  using nb::arg;
  using namespace khop::bindings;
  nb::register_exception_translator(translate);
  bind_table<khop::TextPool>(module, "TextTable");
  bind_table<khop::IntegerPool>(module, "IntegerTable");
  module.def("append_text", &append_text, arg("table"), arg("offsets").noconvert(), arg("bytes").noconvert());
  module.def("append_integers", &append_integers, arg("table"), arg("values").noconvert());
  module.def("add_text", &add_text, arg("table"), arg("offsets").noconvert(), arg("bytes").noconvert(), arg("ids").noconvert());
  module.def("add_integers", &add_integers, arg("table"), arg("values").noconvert(), arg("ids").noconvert());
  module.def("find_text", &find_text, arg("table"), arg("offsets").noconvert(), arg("bytes").noconvert(), arg("ids").noconvert());
  module.def("find_integers", &find_integers, arg("table"), arg("values").noconvert(), arg("ids").noconvert());
  module.def("text_of", &text_of, arg("table"), arg("ids").noconvert());
  module.def("integers_of", &integers_of, arg("table"), arg("ids").noconvert());
  module.def("text_parts", &text_parts, arg("offsets").noconvert(), arg("bytes").noconvert(), arg("skip"), arg("bits"),
             arg("part").noconvert());
  module.def("integer_parts", &integer_parts, arg("values").noconvert(), arg("skip"), arg("bits"), arg("part").noconvert());
  module.def("deal_edges", &deal_edges, arg("destinations").noconvert(), arg("first"), arg("shift"), arg("begin").noconvert(),
             arg("order").noconvert());
  module.def("take_rows", &take_rows, arg("table").noconvert(), arg("row_bytes"), arg("order").noconvert(), arg("out").noconvert());
  module.def("insert_rows", &insert_rows, arg("table").noconvert(), arg("row_bytes"), arg("at").noconvert(),
             arg("added").noconvert(), arg("out").noconvert());
  bind_sums(module);
}
