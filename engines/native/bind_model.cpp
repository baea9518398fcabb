// A model for Python: built from arrays that Python keeps mapped, run a step at a time.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind.h"
#include "forward.h"
#include "linear_named.h"
#include "step_view.h"

namespace nb = nanobind;

namespace bulkhead {
namespace {

template <class Number, int DIMS>
using Array = nb::ndarray<Number, nb::ndim<DIMS>, nb::c_contig, nb::device::cpu>;
using Vector = Array<const float, 1>;
using Bytes = Array<const uint8_t, 1>;

void check(bool holds, const std::string& otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

void check_size(const std::optional<Vector>& vector, int size, const char* name) {
  check(!vector || vector->shape(0) == static_cast<size_t>(size),
        std::string(name) + " has " + std::to_string(vector ? vector->shape(0) : 0) +
            " numbers instead of " + std::to_string(size));
}

const float* data_of(const std::optional<Vector>& vector) {
  return vector ? vector->data() : nullptr;
}

// One linear layer, and the arrays that its numbers lie in.
struct BoundLinear {
  BoundLinear(const std::string& kind_name, Bytes packed, int n, int k, int group,
              std::optional<Vector> bias, std::optional<Vector> factors)
      : kind(linear_kind(kind_name)), packed(packed), bias(bias), factors(factors) {
    check_matrix(kind.weights, n, k, group);
    matrix = {kind.weights, n, k, group, reinterpret_cast<const std::byte*>(packed.data())};
    const size_t size = matrix.num_blocks() * block_bytes(kind.weights, k, group);
    check(packed.size() == size, "packed weights of " + std::to_string(packed.size()) +
                                     " bytes; this shape has " + std::to_string(size));
    check(reinterpret_cast<uintptr_t>(packed.data()) % 64 == 0,
          "packed weights must be aligned to 64 bytes");
    check_size(bias, n, "bias");
    check_size(factors, k, "factors");
  }

  Linear linear(Isa isa, int n, int k, const char* name) const {
    check(matrix.n == n && matrix.k == k,
          std::string(name) + " is " + std::to_string(matrix.n) + " x " + std::to_string(matrix.k) +
              " instead of " + std::to_string(n) + " x " + std::to_string(k));
    return {matrix, kind.takes_int8 ? InputNumbers::int8 : InputNumbers::bf16,
            linear_kernels(isa).*kind.product, data_of(factors), data_of(bias)};
  }

  LinearKind kind;
  Bytes packed;
  std::optional<Vector> bias, factors;
  Matrix matrix;
};

struct BoundLayer {
  BoundLayer(Vector attention_norm, BoundLinear qkv, std::optional<Vector> q_norm,
             std::optional<Vector> k_norm, BoundLinear output, Vector mlp_norm, BoundLinear gate_up,
             BoundLinear down)
      : attention_norm(attention_norm),
        qkv(qkv),
        q_norm(q_norm),
        k_norm(k_norm),
        output(output),
        mlp_norm(mlp_norm),
        gate_up(gate_up),
        down(down) {
    check(q_norm.has_value() == k_norm.has_value(), "q_norm and k_norm come together");
    for (const BoundLinear* one : {&output, &gate_up, &down})
      check(!one->bias, "only q, k and v may have a bias");
  }

  Layer layer(const Shape& shape, Isa isa) const {
    check_size(attention_norm, shape.hidden, "attention_norm");
    check_size(mlp_norm, shape.hidden, "mlp_norm");
    check_size(q_norm, shape.head_dim, "q_norm");
    check_size(k_norm, shape.head_dim, "k_norm");
    return {attention_norm.data(),
            qkv.linear(isa, shape.qkv_size(), shape.hidden, "qkv"),
            data_of(q_norm),
            data_of(k_norm),
            output.linear(isa, shape.hidden, shape.q_size(), "output"),
            mlp_norm.data(),
            gate_up.linear(isa, 2 * shape.inner, shape.hidden, "gate_up"),
            down.linear(isa, shape.hidden, shape.inner, "down")};
  }

  Vector attention_norm;
  BoundLinear qkv;
  std::optional<Vector> q_norm, k_norm;
  BoundLinear output;
  Vector mlp_norm;
  BoundLinear gate_up, down;
};

// The pages' memory, and the scales that its numbers were divided by.
struct BoundPages {
  BoundPages(Array<uint8_t, 1> memory, int num_layers, int num_kv_heads, int head_dim,
             int page_size, const std::string& numbers, std::vector<float> k_scales,
             std::vector<float> v_scales)
      : memory(memory), k_scales(std::move(k_scales)), v_scales(std::move(v_scales)) {
    check(num_layers > 0 && num_kv_heads > 0, "pages of at least one layer and one head");
    check(head_dim > 0 && head_dim % 16 == 0, "head_dim is no multiple of 16");
    check(page_size > 0 && page_size % 2 == 0, "page_size is no multiple of 2");
    check(numbers == "bfloat16" || numbers == "fp8_e4m3", "no pages hold numbers of " + numbers);
    const size_t layers = num_layers;
    check(this->k_scales.size() == layers && this->v_scales.size() == layers,
          "k_scales and v_scales have one number a layer");
    pool = {reinterpret_cast<std::byte*>(memory.data()), 0, num_layers, num_kv_heads, head_dim,
            page_size, numbers == "bfloat16" ? KvNumbers::bf16 : KvNumbers::fp8_e4m3, nullptr,
            nullptr};
    check(memory.size() > 0 && memory.size() % pool.page_bytes() == 0,
          "memory of " + std::to_string(memory.size()) + " bytes is no whole pages of " +
              std::to_string(pool.page_bytes()));
    pool.num_pages = static_cast<int>(memory.size() / pool.page_bytes());
  }

  Array<uint8_t, 1> memory;
  std::vector<float> k_scales, v_scales;
  KvPool pool;
};

class BoundModel {
 public:
  BoundModel(Array<const uint16_t, 2> embedding, std::vector<BoundLayer> layers, Vector norm,
             BoundLinear head, Array<const float, 2> cos, Array<const float, 2> sin,
             BoundPages pages, int heads, int inner, float eps, const std::string& isa_name,
             int threads)
      : embedding_(embedding),
        layers_(std::move(layers)),
        norm_(norm),
        head_(head),
        cos_(cos),
        sin_(sin),
        pages_(std::move(pages)) {
    KvPool& pool = pages_.pool;
    pool.k_scales = pages_.k_scales.data();
    pool.v_scales = pages_.v_scales.data();
    const size_t turns = pool.head_dim / 2;
    check(static_cast<size_t>(pool.num_layers) == layers_.size(), "pages of other layers");
    check(heads > 0 && heads % pool.num_kv_heads == 0, "heads are no multiple of kv heads");
    check(inner > 0 && inner % BLOCK == 0, "inner is no multiple of 16");
    check(cos.shape(1) == turns && sin.shape(1) == turns && cos.shape(0) == sin.shape(0),
          "cos and sin are not [max_context, head_dim / 2]");
    check(threads > 0, "at least one thread is needed");
    const Shape shape{static_cast<int>(embedding.shape(0)), static_cast<int>(embedding.shape(1)),
                      inner, heads, pool.num_kv_heads, pool.head_dim,
                      static_cast<int>(cos.shape(0)), eps};
    const Isa isa = isa_name.empty() ? best_isa() : isa_named(isa_name);
    check_size(norm_, shape.hidden, "norm");
    Model model{shape, embedding_.data(), {}, norm_.data(),
                head_.linear(isa, shape.vocab, shape.hidden, "head"), cos_.data(), sin_.data()};
    for (const BoundLayer& layer : layers_) model.layers.push_back(layer.layer(shape, isa));
    forward_ = std::make_unique<Forward>(model, pool, isa, threads);
    vocab_ = shape.vocab;
  }

  void run(const StepView& step, Array<const int64_t, 1> tokens, Array<int64_t, 1> best,
           Array<float, 2> logits) {
    const size_t wanted = tokens.shape(0), kept = logits.shape(0);
    check(best.shape(0) == wanted, "best has no place for each token");
    check(kept <= wanted && logits.shape(1) == static_cast<size_t>(vocab_),
          "logits are not [tokens or fewer, vocab]");
    for (size_t i = 0; i < wanted; ++i)
      check(tokens.data()[i] >= 0 && tokens.data()[i] < step.arrays().num_tokens,
            "tokens: there is none at place " + std::to_string(tokens.data()[i]));
    const Wanted told{static_cast<int>(wanted), tokens.data(), best.data(), static_cast<int>(kept),
                      logits.data()};
    nb::gil_scoped_release released;
    forward_->run(step.arrays(), told);
  }

 private:
  Array<const uint16_t, 2> embedding_;
  std::vector<BoundLayer> layers_;
  Vector norm_;
  BoundLinear head_;
  Array<const float, 2> cos_, sin_;
  BoundPages pages_;
  std::unique_ptr<Forward> forward_;
  int vocab_;
};

}  // namespace

void bind_model(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<BoundLinear>(module, "Linear")
      .def(nb::init<const std::string&, Bytes, int, int, int, std::optional<Vector>,
                    std::optional<Vector>>(),
           "kind"_a, "packed"_a.noconvert(), "n"_a, "k"_a, "group"_a,
           "bias"_a.noconvert() = nb::none(), "factors"_a.noconvert() = nb::none());
  nb::class_<BoundLayer>(module, "Layer")
      .def(nb::init<Vector, BoundLinear, std::optional<Vector>, std::optional<Vector>, BoundLinear,
                    Vector, BoundLinear, BoundLinear>(),
           nb::kw_only(), "attention_norm"_a.noconvert(), "qkv"_a, "q_norm"_a.noconvert(),
           "k_norm"_a.noconvert(), "output"_a, "mlp_norm"_a.noconvert(), "gate_up"_a, "down"_a);
  nb::class_<BoundPages>(module, "Pages")
      .def(nb::init<Array<uint8_t, 1>, int, int, int, int, const std::string&, std::vector<float>,
                    std::vector<float>>(),
           nb::kw_only(), "memory"_a.noconvert(), "num_layers"_a, "num_kv_heads"_a, "head_dim"_a,
           "page_size"_a, "numbers"_a, "k_scales"_a, "v_scales"_a);
  nb::class_<BoundModel>(module, "Model")
      .def(nb::init<Array<const uint16_t, 2>, std::vector<BoundLayer>, Vector, BoundLinear,
                    Array<const float, 2>, Array<const float, 2>, BoundPages, int, int, float,
                    const std::string&, int>(),
           nb::kw_only(), "embedding"_a.noconvert(), "layers"_a, "norm"_a.noconvert(), "head"_a,
           "cos"_a.noconvert(), "sin"_a.noconvert(), "pages"_a, "heads"_a, "inner"_a, "eps"_a,
           "isa"_a = "", "threads"_a = 1)
      .def("run", &BoundModel::run, "step"_a, "tokens"_a.noconvert(), "best"_a.noconvert(),
           "logits"_a.noconvert());
}

}  // namespace bulkhead
