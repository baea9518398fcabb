// RowKernels for Python: rows of float32 arrays, into arrays that the caller made.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "bind.h"
#include "rows.h"

namespace nb = nanobind;

namespace bulkhead {
namespace {

template <class Number, int DIMS>
using Array = nb::ndarray<Number, nb::ndim<DIMS>, nb::c_contig, nb::device::cpu>;
using Matrix = Array<const float, 2>;
using Vector = Array<const float, 1>;

void check(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

template <class A, class B>
void check_alike(const A& a, const B& b, const char* what) {
  check(a.shape(0) == b.shape(0) && a.shape(1) == b.shape(1), what);
}

const float* factors_of(const nb::object& factors, size_t k) {
  if (factors.is_none()) return nullptr;
  const auto vector = nb::cast<Vector>(factors);
  check(vector.shape(0) == k, "factors: one for each column of x is needed");
  return vector.data();
}

template <class Body>
void for_rows(const Matrix& x, Body&& body) {
  nb::gil_scoped_release release;
  for (size_t row = 0; row < x.shape(0); ++row) body(row, x.data() + row * x.shape(1));
}

void rms_norm(const std::string& isa, Matrix x, Vector weight, float eps, Array<float, 2> out) {
  const RowKernels& kernels = row_kernels(isa_named(isa));
  const size_t k = x.shape(1);
  check(weight.shape(0) == k, "weight: one for each column of x is needed");
  check_alike(x, out, "out: the shape of x is needed");
  for_rows(x, [&](size_t row, const float* values) {
    kernels.rms_norm(values, weight.data(), eps, static_cast<int>(k), out.data() + row * k);
  });
}

void to_bf16(const std::string& isa, Matrix x, nb::object factors, Array<uint16_t, 2> out) {
  const RowKernels& kernels = row_kernels(isa_named(isa));
  const size_t k = x.shape(1);
  const float* by = factors_of(factors, k);
  check_alike(x, out, "out: the shape of x is needed");
  for_rows(x, [&](size_t row, const float* values) {
    kernels.to_bf16(values, by, static_cast<int>(k), out.data() + row * k);
  });
}

void to_int8(const std::string& isa, Matrix x, nb::object factors, Array<int8_t, 2> out,
             Array<float, 2> scales, Array<int32_t, 2> sums) {
  const RowKernels& kernels = row_kernels(isa_named(isa));
  const size_t k = x.shape(1), groups = k / 64;
  const float* by = factors_of(factors, k);
  check(k % 64 == 0, "x: a multiple of 64 columns is needed");
  check_alike(x, out, "out: the shape of x is needed");
  check_alike(scales, sums, "sums: the shape of scales is needed");
  check(scales.shape(0) == x.shape(0) && scales.shape(1) == groups,
        "scales: one for each 64 columns of x is needed");
  for_rows(x, [&](size_t row, const float* values) {
    kernels.to_int8(values, by, static_cast<int>(k), out.data() + row * k,
                    scales.data() + row * groups, sums.data() + row * groups);
  });
}

void swiglu(const std::string& isa, Matrix gate, Matrix up, Array<float, 2> out) {
  const RowKernels& kernels = row_kernels(isa_named(isa));
  const size_t k = gate.shape(1);
  check_alike(gate, up, "up: the shape of gate is needed");
  check_alike(gate, out, "out: the shape of gate is needed");
  for_rows(gate, [&](size_t row, const float* values) {
    kernels.swiglu(values, up.data() + row * k, static_cast<int>(k), out.data() + row * k);
  });
}

void rope(const std::string& isa, Array<float, 3> x, Matrix cos, Matrix sin) {
  const RowKernels& kernels = row_kernels(isa_named(isa));
  const size_t heads = x.shape(1), dim = x.shape(2);
  check(dim % 2 == 0, "x: an even number of dims is needed");
  check(cos.shape(0) == x.shape(0) && cos.shape(1) == dim / 2,
        "cos: half a head's dims for each row of x are needed");
  check_alike(cos, sin, "sin: the shape of cos is needed");
  for_rows(cos, [&](size_t row, const float* cosines) {
    kernels.rope(x.data() + row * heads * dim, static_cast<int>(heads), static_cast<int>(dim),
                 cosines, sin.data() + row * (dim / 2));
  });
}

void argmax(const std::string& isa, Matrix x, Array<int32_t, 1> out) {
  const RowKernels& kernels = row_kernels(isa_named(isa));
  check(out.shape(0) == x.shape(0), "out: one for each row of x is needed");
  for_rows(x, [&](size_t row, const float* values) {
    out.data()[row] = kernels.argmax(values, static_cast<int>(x.shape(1)));
  });
}

}  // namespace

void bind_rows(nb::module_& module) {
  module.def("rms_norm", rms_norm, nb::arg("isa"), nb::arg("x"), nb::arg("weight"), nb::arg("eps"),
             nb::arg("out"));
  module.def("to_bf16", to_bf16, nb::arg("isa"), nb::arg("x"), nb::arg("factors").none(),
             nb::arg("out"));
  module.def("to_int8", to_int8, nb::arg("isa"), nb::arg("x"), nb::arg("factors").none(),
             nb::arg("out"), nb::arg("scales"), nb::arg("sums"));
  module.def("swiglu", swiglu, nb::arg("isa"), nb::arg("gate"), nb::arg("up"), nb::arg("out"));
  module.def("rope", rope, nb::arg("isa"), nb::arg("x"), nb::arg("cos"), nb::arg("sin"));
  module.def("argmax", argmax, nb::arg("isa"), nb::arg("x"), nb::arg("out"));
}

}  // namespace bulkhead
