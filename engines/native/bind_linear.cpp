// The packers and the products, with numpy arrays in and out: for the packer, tests and benchmarks.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include "bind.h"
#include "input_rows.h"
#include "linear.h"
#include "linear_layout.h"
#include "linear_named.h"
#include "pool.h"

namespace nb = nanobind;

namespace bulkhead {
namespace {

template <class Number>
using Rows = nb::ndarray<const Number, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NewBytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;
using NewRows = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

void require(bool holds, const std::string& otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

NewBytes new_lines(size_t size) {
  auto* data = static_cast<uint8_t*>(::operator new(size, std::align_val_t{LINE}));
  nb::capsule owner(data, [](void* p) noexcept { ::operator delete(p, std::align_val_t{LINE}); });
  return NewBytes(data, {size}, owner);
}

NewBytes new_packed(Weights weights, int64_t n, int64_t k, int64_t group) {
  check_matrix(weights, n, k, group);
  const size_t blocks = (n + BLOCK - 1) / BLOCK;
  return new_lines(blocks * block_bytes(weights, static_cast<int>(k), static_cast<int>(group)));
}

std::byte* bytes_of(NewBytes& array) { return reinterpret_cast<std::byte*>(array.data()); }

NewBytes packed_bf16(Rows<uint16_t> w) {
  const int64_t n = w.shape(0), k = w.shape(1);
  NewBytes out = new_packed(Weights::bf16, n, k, 0);
  nb::gil_scoped_release released;
  pack_bf16(w.data(), static_cast<int>(n), static_cast<int>(k), bytes_of(out));
  return out;
}

using Packer = void (*)(const uint16_t* w, int n, int k, std::byte* out);

template <Weights WEIGHTS, Packer PACK>
NewBytes packed_rounded(Rows<uint16_t> w) {
  const int64_t n = w.shape(0), k = w.shape(1);
  NewBytes out = new_packed(WEIGHTS, n, k, INPUT_GROUP);
  nb::gil_scoped_release released;
  PACK(w.data(), static_cast<int>(n), static_cast<int>(k), bytes_of(out));
  return out;
}

NewBytes packed_int4(Rows<uint8_t> w, Rows<float> scales) {
  const int64_t n = 2 * w.shape(0), k = w.shape(1), groups = scales.shape(1);
  require(static_cast<int64_t>(scales.shape(0)) == n && groups > 0 && k % groups == 0,
          "scales of " + std::to_string(scales.shape(0)) + " x " + std::to_string(groups) +
              " don't fit int4 weights of " + std::to_string(n) + " x " + std::to_string(k));
  const int group = static_cast<int>(k / groups);
  NewBytes out = new_packed(Weights::int4, n, k, group);
  nb::gil_scoped_release released;
  pack_int4(w.data(), scales.data(), static_cast<int>(n), static_cast<int>(k), group,
            bytes_of(out));
  return out;
}

size_t packed_bytes(const std::string& kind, int64_t n, int64_t k, int64_t group) {
  const Weights weights = linear_kind(kind).weights;
  check_matrix(weights, n, k, group);
  const size_t blocks = (n + BLOCK - 1) / BLOCK;
  return blocks * block_bytes(weights, static_cast<int>(k), static_cast<int>(group));
}

NewRows linear(const std::string& kind_name, Bytes packed, int64_t n, int64_t k, int64_t group,
               Rows<float> x, const std::string& isa_name, int blocks, int threads,
               std::optional<Rows<float>> onto) {
  const LinearKind& kind = linear_kind(kind_name);
  const Isa isa = isa_name.empty() ? best_isa() : isa_named(isa_name);
  const size_t wanted = packed_bytes(kind_name, n, k, group);
  require(packed.size() == wanted, "packed weights of " + std::to_string(packed.size()) +
                                       " bytes; this shape has " + std::to_string(wanted));
  require(reinterpret_cast<uintptr_t>(packed.data()) % LINE == 0,
          "packed weights must be aligned to 64 bytes");
  require(static_cast<int64_t>(x.shape(1)) == k, "x has " + std::to_string(x.shape(1)) +
                                                     " columns; the weights have k = " +
                                                     std::to_string(k));
  require(blocks >= 0 && threads > 0, "blocks must be 0 or more, threads 1 or more");
  const size_t num_rows = x.shape(0);
  const size_t columns = n;
  require(!onto || (onto->shape(0) == num_rows && onto->shape(1) == columns),
          "what is added to must have the result's shape");

  auto* out = new float[num_rows * columns];
  nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  {
    nb::gil_scoped_release released;
    if (onto) std::copy_n(onto->data(), num_rows * columns, out);
    InputRows rows;
    const int num_columns = static_cast<int>(k);
    rows.reserve(static_cast<int>(num_rows), num_columns,
                 kind.takes_int8 ? InputNumbers::int8 : InputNumbers::bf16);
    for (size_t row = 0; row < num_rows; ++row)
      rows.fill(row_kernels(isa), static_cast<int>(row), x.data() + row * k, nullptr, 0,
                num_columns);
    const Inputs inputs = rows.rows(0, static_cast<int>(num_rows));
    const Matrix w{kind.weights, static_cast<int>(n), static_cast<int>(k), static_cast<int>(group),
                   reinterpret_cast<const std::byte*>(packed.data())};
    const Product product = linear_kernels(isa).*kind.product;
    const int size = blocks ? blocks : w.num_blocks();
    Pool pool(threads);
    pool.run((w.num_blocks() + size - 1) / size, [&](int item, int) {
      const int first = item * size;
      product(w, first, std::min(first + size, w.num_blocks()), inputs, out, n, onto.has_value());
    });
  }
  return NewRows(out, {num_rows, columns}, owner);
}

}  // namespace

void bind_linear(nb::module_& module) {
  using namespace nb::literals;
  module.def("pack_bf16", packed_bf16, "weight"_a.noconvert());
  module.def("pack_int8", packed_rounded<Weights::int8, pack_int8>, "weight"_a.noconvert());
  module.def("pack_int6", packed_rounded<Weights::int6, pack_int6>, "weight"_a.noconvert());
  module.def("pack_int4", packed_int4, "weight"_a.noconvert(), "scales"_a.noconvert());
  module.def("packed_bytes", packed_bytes, "kind"_a, "n"_a, "k"_a, "group"_a);
  module.def("linear", linear, "kind"_a, "packed"_a.noconvert(), "n"_a, "k"_a, "group"_a,
             "x"_a.noconvert(), nb::kw_only(), "isa"_a = "", "blocks"_a = 0, "threads"_a = 1,
             "onto"_a.noconvert() = nb::none());
}

}  // namespace bulkhead
