// How the numbers of one head of one page lie in memory.
//
// K: the 2 (bf16) or 4 (e4m3) neighbouring dims that fill 4 bytes lie together, for each token of
// the page, then the next dims: so one register holds the same dims of 16 tokens.
// V: two neighbouring tokens lie together, for each dim, then the next tokens.
// Pairs are what a CPU's bf16 product wants: it multiplies and adds two at a time.
#pragma once

#include "attention.h"

namespace bulkhead {
namespace {

inline int k_unit(KvNumbers numbers) { return numbers == KvNumbers::bf16 ? 2 : 4; }

// Which of 4 dims lies at byte `i` of 4, and at which byte dim `i` lies: the second and the third
// have changed places, so that the first two are the even bytes.
constexpr int e4m3_order(int i) { return i % 3 == 0 ? i : 3 - i; }

// Where a number lies, counted in numbers.
inline size_t k_place(const KvPool& pool, int token, int dim) {
  const int unit = k_unit(pool.numbers), in_unit = dim % unit;
  return static_cast<size_t>(dim / unit * pool.page_size + token) * unit +
         (unit == 4 ? e4m3_order(in_unit) : in_unit);
}

inline size_t v_place(const KvPool& pool, int token, int dim) {
  return static_cast<size_t>(token / 2 * pool.head_dim + dim) * 2 + token % 2;
}

inline float k_scale(const KvPool& pool, int layer) {
  return pool.numbers == KvNumbers::bf16 ? 1.f : pool.k_scales[layer];
}

inline float v_scale(const KvPool& pool, int layer) {
  return pool.numbers == KvNumbers::bf16 ? 1.f : pool.v_scales[layer];
}

}  // namespace
}  // namespace bulkhead
