// Arrays with an element type known only at run time, and dispatch to a template by this type.
#pragma once

#include "bindings.h"
#include "number.h"

#include <span>
#include <stdexcept>

namespace nanobind::detail {

template <>
struct dtype_traits<khop::BFloat16> {
  static constexpr dlpack::dtype value{static_cast<std::uint8_t>(dlpack::dtype_code::Bfloat), 16, 1};
  static constexpr auto name = const_name("bfloat16");
};

template <>
struct dtype_traits<khop::Float16> {
  static constexpr dlpack::dtype value{static_cast<std::uint8_t>(dlpack::dtype_code::Float), 16, 1};
  static constexpr auto name = const_name("float16");
};

}  // namespace nanobind::detail

namespace khop::bindings {

// Contiguous CPU arrays of any type and shape.
using AnyIn = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using AnyInto = nb::ndarray<nb::c_contig, nb::device::cpu>;
template <class T>
using Into = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T, class Array>
T* as(const Array& array) {
  if (array.dtype() != nb::dtype<std::remove_const_t<T>>()) throw nb::type_error("arrays differ in type");
  return static_cast<T*>(array.data());
}

template <class T, class Array>
std::span<T> typed_span(const Array& array) {
  return {as<T>(array), array.size()};
}

template <class T, class... Rest, class Array, class Fn>
auto visit(const Array& array, Fn&& fn) {
  if (array.dtype() == nb::dtype<T>()) return fn(T{});
  if constexpr (sizeof...(Rest) > 0) {
    return visit<Rest...>(array, fn);
  } else {
    throw nb::type_error("no kernel for this element type");
  }
}

// fn(T{}) with the array's element type.
template <class Array, class Fn>
auto visit_float(const Array& array, Fn&& fn) {
  return visit<float, double, BFloat16, Float16>(array, fn);
}
template <class Array, class Fn>
auto visit_index(const Array& array, Fn&& fn) {
  return visit<std::int32_t, std::int64_t>(array, fn);
}

}  // namespace khop::bindings
