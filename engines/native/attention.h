// Paged attention: K and V are written by slot and read by block table, a layer at a time.
//
// Told pages that were checked before; never told seqs, domains or tags. A row attends to the pages
// of its own table and no other, and its sums run over the context in one fixed order: the result
// is the same bits whoever shares the step and however the prompt was cut.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu.h"

namespace bulkhead {

enum class KvNumbers { bf16, fp8_e4m3 };

// Names how the numbers of a page lie in memory, for the keys of pages that outlive their process.
inline constexpr const char* KV_LAYOUT = "page/layer/kv/head/native-1";

// The memory of all pages: [page][layer][K, V][kv_head][page_size * head_dim]. How the numbers of
// one head lie in its page_size * head_dim is the kernels' own: `read_head` undoes it.
// page_size is a multiple of 2, head_dim of 16.
struct KvPool {
  std::byte* data;
  int num_pages, num_layers, num_kv_heads, head_dim, page_size;
  KvNumbers numbers;
  const float* k_scales;  // [layers] stored = value / scale, for e4m3; all 1 unless calibrated
  const float* v_scales;

  size_t head_bytes() const {
    return static_cast<size_t>(page_size) * head_dim * (numbers == KvNumbers::bf16 ? 2 : 1);
  }
  size_t page_bytes() const { return 2 * head_bytes() * num_kv_heads * num_layers; }
  std::byte* head(int64_t page, int layer, int side, int kv_head) const {  // side: 0 is K, 1 is V
    const size_t line = ((page * num_layers + layer) * 2 + side) * num_kv_heads + kv_head;
    return data + line * head_bytes();
  }
};

// One row of a step: `query_len` tokens that end at position context_len - 1.
struct AttentionRow {
  const int64_t* pages;  // its block table
  int context_len, query_len;
};

// A context is summed in segments of some pages, counted from position 0, whose results are merged
// in their order. One call to `attend` does all that; or, so that threads may share a long context,
// a call to `attend_segment` for each segment and then one to `merge`. Both give the same bits.
int segment_tokens(const KvPool& pool);
int num_segments(const KvPool& pool, int context_len);
// Floats that one segment's result takes: a multiple of 16.
size_t partial_floats(const KvPool& pool, int num_heads);

struct AttentionKernels {
  // Stores k and v, each float32 [kv_heads, head_dim], at a slot (page * page_size + offset).
  // e4m3 saturates at +-448 (infinities too); NaN stays NaN.
  void (*store)(const KvPool& pool, int layer, int64_t slot, const float* k, const float* v);
  // Attention of queries first..last-1 of a row, for the heads that share one kv head. q and out
  // are float32 [query_len, heads, head_dim] with a stride of `ld` floats a token. `scratch` holds
  // attention_scratch() bytes, aligned to 64.
  void (*attend)(const KvPool& pool, int layer, int kv_head, const AttentionRow& row, int first,
                 int last, const float* q, int num_heads, ptrdiff_t ld, float* out,
                 ptrdiff_t out_ld, std::byte* scratch);
  // What one query (`q` and `out` are its own, [heads, head_dim]) finds in one segment; `partial`
  // holds partial_floats(), aligned to 64.
  void (*attend_segment)(const KvPool& pool, int layer, int kv_head, const AttentionRow& row,
                         int query, int segment, const float* q, int num_heads, float* partial,
                         std::byte* scratch);
  // Merges the results of a query's segments, which lie one behind the other. Overwrites them.
  void (*merge)(const KvPool& pool, int layer, int kv_head, int segments, float* partials,
                int num_heads, float* out);
  // One head of one page as float32 [page_size, head_dim], whatever its layout.
  void (*read_head)(const KvPool& pool, int64_t page, int layer, int side, int kv_head,
                    float* out);
};

size_t attention_scratch(const KvPool& pool, int num_heads);  // bytes
// `use_vbmi`: where the CPU has that part of AVX-512, too. The bits are the same with and without.
const AttentionKernels& attention_kernels(Isa isa, bool use_vbmi = true);

}  // namespace bulkhead
