// AttentionKernels for Python: pages in memory that the caller owns, and rows of a ragged step.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention.h"
#include "bind.h"

namespace nb = nanobind;

namespace bulkhead {
namespace {

template <class Number, int DIMS>
using Array = nb::ndarray<Number, nb::ndim<DIMS>, nb::c_contig, nb::device::cpu>;

void check(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

KvNumbers numbers_named(const std::string& name) {
  if (name == "bfloat16") return KvNumbers::bf16;
  check(name == "fp8_e4m3", "no numbers of pages are named " + name);
  return KvNumbers::fp8_e4m3;
}

struct Free {
  void operator()(void* memory) const { ::operator delete(memory, std::align_val_t(64)); }
};

template <class Number>
std::unique_ptr<Number, Free> aligned(size_t count) {
  return std::unique_ptr<Number, Free>(
      static_cast<Number*>(::operator new(count * sizeof(Number), std::align_val_t(64))));
}

// The pages of `memory` and what computes with them. All arguments are checked here.
class PagedAttention {
 public:
  PagedAttention(const std::string& isa, Array<uint8_t, 1> memory, int num_layers, int num_kv_heads,
                 int head_dim, int page_size, const std::string& numbers,
                 std::vector<float> k_scales, std::vector<float> v_scales, bool use_vbmi)
      : kernels_(attention_kernels(isa_named(isa), use_vbmi)),
        memory_(memory),
        k_scales_(std::move(k_scales)),
        v_scales_(std::move(v_scales)) {
    check(num_layers > 0 && num_kv_heads > 0, "a layer and a kv head are needed");
    check(head_dim > 0 && head_dim % 16 == 0, "head_dim: a multiple of 16 is needed");
    check(page_size > 0 && page_size % 2 == 0, "page_size: a multiple of 2 is needed");
    check(k_scales_.size() == static_cast<size_t>(num_layers) &&
              v_scales_.size() == k_scales_.size(),
          "scales: one of K and one of V for each layer are needed");
    pool_ = {reinterpret_cast<std::byte*>(memory_.data()), 0,        num_layers,
             num_kv_heads,                                 head_dim, page_size,
             numbers_named(numbers),                       k_scales_.data(), v_scales_.data()};
    pool_.num_pages = static_cast<int>(memory_.shape(0) / pool_.page_bytes());
    check(memory_.shape(0) % pool_.page_bytes() == 0 && pool_.num_pages > 0,
          "memory: whole pages of " + std::to_string(pool_.page_bytes()) + " bytes are needed");
  }

  void store(int layer, Array<const int64_t, 1> slots, Array<const float, 3> k,
             Array<const float, 3> v) {
    check_layer(layer);
    check_tokens(k, slots.shape(0), pool_.num_kv_heads, "k");
    check_tokens(v, slots.shape(0), pool_.num_kv_heads, "v");
    const int64_t end = static_cast<int64_t>(pool_.num_pages) * pool_.page_size;
    for (size_t i = 0; i < slots.shape(0); ++i)
      check(slots.data()[i] >= 0 && slots.data()[i] < end, "slots: past the pages of memory");
    const size_t token = static_cast<size_t>(pool_.num_kv_heads) * pool_.head_dim;
    nb::gil_scoped_release release;
    for (size_t i = 0; i < slots.shape(0); ++i)
      kernels_.store(pool_, layer, slots.data()[i], k.data() + i * token, v.data() + i * token);
  }

  // Rows of a step, whose queries lie one behind the other; in segments, as threads would share
  // them, when `split`, which takes one query a row.
  void attend(int layer, Array<const float, 3> q, Array<const int64_t, 2> tables,
              Array<const int64_t, 1> context_lens, Array<const int64_t, 1> query_lens,
              Array<float, 3> out, bool split) {
    check_layer(layer);
    const int heads = static_cast<int>(q.shape(1));
    check(heads > 0 && heads % pool_.num_kv_heads == 0, "q: heads a multiple of kv heads needed");
    check(tables.shape(0) == context_lens.shape(0) && tables.shape(0) == query_lens.shape(0),
          "tables, context_lens, query_lens: one for each row is needed");
    int64_t tokens = 0;
    for (size_t i = 0; i < tables.shape(0); ++i) {
      check_row(tables.data() + i * tables.shape(1), tables.shape(1), context_lens.data()[i],
                query_lens.data()[i]);
      check(!split || query_lens.data()[i] == 1, "split: one query a row is needed");
      tokens += query_lens.data()[i];
    }
    check_tokens(q, tokens, heads, "q");
    check_tokens(out, tokens, heads, "out");
    nb::gil_scoped_release release;
    const auto scratch = aligned<std::byte>(attention_scratch(pool_, heads));
    ptrdiff_t at = 0;
    for (size_t i = 0; i < tables.shape(0); ++i) {
      const AttentionRow row{tables.data() + i * tables.shape(1),
                             static_cast<int>(context_lens.data()[i]),
                             static_cast<int>(query_lens.data()[i])};
      for (int kv_head = 0; kv_head < pool_.num_kv_heads; ++kv_head)
        (this->*(split ? &PagedAttention::attend_in_segments : &PagedAttention::attend_whole))(
            layer, kv_head, row, q.data() + at, heads, out.data() + at, scratch.get());
      at += static_cast<ptrdiff_t>(row.query_len) * heads * pool_.head_dim;
    }
  }

  void read_head(int64_t page, int layer, int side, int kv_head, Array<float, 2> out) {
    check_layer(layer);
    check_page(page);
    check(side == 0 || side == 1, "side: 0 (K) or 1 (V) is needed");
    check(kv_head >= 0 && kv_head < pool_.num_kv_heads, "kv_head: no such head");
    check(out.shape(0) == static_cast<size_t>(pool_.page_size) &&
              out.shape(1) == static_cast<size_t>(pool_.head_dim),
          "out: [page_size, head_dim] is needed");
    kernels_.read_head(pool_, page, layer, side, kv_head, out.data());
  }

 private:
  void attend_whole(int layer, int kv_head, const AttentionRow& row, const float* q, int heads,
                    float* out, std::byte* scratch) {
    const ptrdiff_t token = static_cast<ptrdiff_t>(heads) * pool_.head_dim;
    kernels_.attend(pool_, layer, kv_head, row, 0, row.query_len, q, heads, token, out, token,
                    scratch);
  }

  void attend_in_segments(int layer, int kv_head, const AttentionRow& row, const float* q,
                          int heads, float* out, std::byte* scratch) {
    const int segments = num_segments(pool_, row.context_len);
    const size_t floats = partial_floats(pool_, heads);
    const auto partials = aligned<float>(segments * floats);
    for (int segment = segments - 1; segment >= 0; --segment)  // in any order
      kernels_.attend_segment(pool_, layer, kv_head, row, 0, segment, q, heads,
                              partials.get() + segment * floats, scratch);
    kernels_.merge(pool_, layer, kv_head, segments, partials.get(), heads, out);
  }

  void check_layer(int layer) const {
    check(layer >= 0 && layer < pool_.num_layers, "layer: no layer " + std::to_string(layer));
  }

  void check_page(int64_t page) const {
    check(page >= 0 && page < pool_.num_pages, "there is no page " + std::to_string(page));
  }

  void check_row(const int64_t* pages, size_t width, int64_t context_len, int64_t query_len) const {
    check(query_len >= 0 && query_len <= context_len,
          "context_lens: at least a row's number of queries is needed");
    check(static_cast<size_t>(context_len) <= width * pool_.page_size,
          "tables: enough pages for a row's context_len are needed");
    for (int64_t i = 0; i * pool_.page_size < context_len; ++i) check_page(pages[i]);
  }

  template <class Number>
  void check_tokens(const Array<Number, 3>& array, size_t tokens, int heads, const char* name) {
    check(array.shape(0) == tokens && array.shape(1) == static_cast<size_t>(heads) &&
              array.shape(2) == static_cast<size_t>(pool_.head_dim),
          std::string(name) + ": [tokens, heads, head_dim] is needed");
  }

  const AttentionKernels& kernels_;
  Array<uint8_t, 1> memory_;
  std::vector<float> k_scales_, v_scales_;
  KvPool pool_;
};

}  // namespace

void bind_attention(nb::module_& module) {
  module.attr("KV_LAYOUT") = KV_LAYOUT;
  nb::class_<PagedAttention>(module, "PagedAttention")
      .def(nb::init<const std::string&, Array<uint8_t, 1>, int, int, int, int, const std::string&,
                    std::vector<float>, std::vector<float>, bool>(),
           nb::arg("isa"), nb::arg("memory"), nb::arg("num_layers"), nb::arg("num_kv_heads"),
           nb::arg("head_dim"), nb::arg("page_size"), nb::arg("numbers"), nb::arg("k_scales"),
           nb::arg("v_scales"), nb::arg("use_vbmi") = true)
      .def("store", &PagedAttention::store, nb::arg("layer"), nb::arg("slots"), nb::arg("k"),
           nb::arg("v"))
      .def("attend", &PagedAttention::attend, nb::arg("layer"), nb::arg("q"), nb::arg("tables"),
           nb::arg("context_lens"), nb::arg("query_lens"), nb::arg("out"),
           nb::arg("split") = false)
      .def("read_head", &PagedAttention::read_head, nb::arg("page"), nb::arg("layer"),
           nb::arg("side"), nb::arg("kv_head"), nb::arg("out"));
}

}  // namespace bulkhead
