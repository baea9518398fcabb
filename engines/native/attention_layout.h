// How the numbers of one head of one page lie in memory, and how they get there.
//
// K: the 2 (bf16) or 4 (e4m3) neighbouring dims that fill 4 bytes lie together, for each token of
// the page, then the next dims: so one register holds the same dims of 16 tokens.
// V: two neighbouring tokens lie together, for each dim, then the next tokens.
// Pairs are what a CPU's bf16 product wants: it multiplies and adds two at a time.
#pragma once

#include <cstring>

#include "attention.h"
#include "e4m3.h"

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

inline size_t place(const KvPool& pool, int side, int token, int dim) {
  return side == 0 ? k_place(pool, token, dim) : v_place(pool, token, dim);
}

inline float k_scale(const KvPool& pool, int layer) {
  return pool.numbers == KvNumbers::bf16 ? 1.f : pool.k_scales[layer];
}

inline float v_scale(const KvPool& pool, int layer) {
  return pool.numbers == KvNumbers::bf16 ? 1.f : pool.v_scales[layer];
}

inline uint16_t to_bf16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float of_bf16_bits(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline void store_token(const KvPool& pool, std::byte* head, int side, int token, float scale,
                        const float* values) {
  for (int dim = 0; dim < pool.head_dim; ++dim) {
    const size_t at = place(pool, side, token, dim);
    if (pool.numbers == KvNumbers::bf16) {
      const uint16_t bits = to_bf16_bits(values[dim]);
      std::memcpy(head + 2 * at, &bits, sizeof bits);
    } else {
      head[at] = static_cast<std::byte>(to_e4m3(values[dim] / scale));
    }
  }
}

void store(const KvPool& pool, int layer, int64_t slot, const float* k, const float* v) {
  const int64_t page = slot / pool.page_size;
  const int token = static_cast<int>(slot % pool.page_size);
  for (int head = 0; head < pool.num_kv_heads; ++head) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(head) * pool.head_dim;
    store_token(pool, pool.head(page, layer, 0, head), 0, token, k_scale(pool, layer), k + at);
    store_token(pool, pool.head(page, layer, 1, head), 1, token, v_scale(pool, layer), v + at);
  }
}

void read_head(const KvPool& pool, int64_t page, int layer, int side, int kv_head, float* out) {
  const std::byte* head = pool.head(page, layer, side, kv_head);
  const float scale = side == 0 ? k_scale(pool, layer) : v_scale(pool, layer);
  for (int token = 0; token < pool.page_size; ++token) {
    for (int dim = 0; dim < pool.head_dim; ++dim) {
      const size_t at = place(pool, side, token, dim);
      float& value = out[token * pool.head_dim + dim];
      if (pool.numbers == KvNumbers::bf16) {
        uint16_t bits;
        std::memcpy(&bits, head + 2 * at, sizeof bits);
        value = of_bf16_bits(bits);
      } else {
        value = E4M3_VALUES[static_cast<uint8_t>(head[at])] * scale;
      }
    }
  }
}

}  // namespace
}  // namespace bulkhead
