// A token's K and V into its page, and a head of a page back out of it.
#pragma once

#include <utility>

#include "attention_layout.h"
#include "e4m3.h"
#include "lanes.h"

namespace bulkhead {
namespace {

constexpr int BLOCK_DIMS = 16;  // that are converted, and then put in their places

// To nearest, ties to even; saturates at 448.
Words e4m3_of(Floats values) {
  const Words bits = __builtin_bit_cast(Words, values), size = bits & 0x7fffffff;
  const Words whole = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - 960;
  const Words within = whole < 0x7e ? whole : Words{} + 0x7e;
  // Under 2^-6 codes count 512ths: 2^23 added makes the float's own rounding cut there.
  const Floats counted = __builtin_bit_cast(Floats, size) * 512.f + 0x1p23f;
  const Words small = __builtin_bit_cast(Words, counted) & 0xff;
  const Words code = size < 0x3c800000 ? small : within;
  return (size > 0x7f800000 ? Words{} + 0x7f : code) | (bits >> 24 & 0x80);
}

// What pages hold of some dims, in the dims' order.
template <class Number>
void convert(const float* values, float scale, Number* numbers) {
  for (int i = 0; i < BLOCK_DIMS; i += LANES) {
    typedef Number Narrow __attribute__((vector_size(LANES * sizeof(Number))));
    const Floats lanes = load(values + i);
    Narrow narrow;
    if constexpr (sizeof(Number) == 2)
      narrow = __builtin_convertvector(bf16_of(lanes), Narrow);
    else
      narrow = __builtin_convertvector(e4m3_of(scale == 1 ? lanes : lanes / scale), Narrow);
    std::memcpy(numbers + i, &narrow, sizeof narrow);
  }
}

template <class Number>
void store_k(const KvPool& pool, std::byte* head, int token, float scale, const float* values) {
  constexpr int unit = 4 / sizeof(Number);
  for (int dim = 0; dim < pool.head_dim; dim += BLOCK_DIMS) {
    Number numbers[BLOCK_DIMS];
    convert(values + dim, scale, numbers);
    for (int i = 0; i < BLOCK_DIMS; i += unit) {
      if constexpr (unit == 4) std::swap(numbers[i + 1], numbers[i + 2]);  // as e4m3_order has it
      const size_t at = static_cast<size_t>((dim + i) / unit) * pool.page_size + token;
      std::memcpy(head + 4 * at, numbers + i, 4);
    }
  }
}

template <class Number>
void store_v(const KvPool& pool, std::byte* head, int token, float scale, const float* values) {
  auto* to = reinterpret_cast<Number*>(head) + v_place(pool, token, 0);
  for (int dim = 0; dim < pool.head_dim; dim += BLOCK_DIMS) {
    Number numbers[BLOCK_DIMS];
    convert(values + dim, scale, numbers);
    for (int i = 0; i < BLOCK_DIMS; ++i) to[2 * (dim + i)] = numbers[i];
  }
}

template <class Number>
void store_as(const KvPool& pool, int layer, int64_t slot, const float* k, const float* v) {
  const int64_t page = slot / pool.page_size;
  const int token = static_cast<int>(slot % pool.page_size);
  for (int head = 0; head < pool.num_kv_heads; ++head) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(head) * pool.head_dim;
    store_k<Number>(pool, pool.head(page, layer, 0, head), token, k_scale(pool, layer), k + at);
    store_v<Number>(pool, pool.head(page, layer, 1, head), token, v_scale(pool, layer), v + at);
  }
}

void store(const KvPool& pool, int layer, int64_t slot, const float* k, const float* v) {
  if (pool.numbers == KvNumbers::bf16)
    store_as<uint16_t>(pool, layer, slot, k, v);
  else
    store_as<uint8_t>(pool, layer, slot, k, v);
}

float number_at(const KvPool& pool, const std::byte* head, size_t at) {
  if (pool.numbers == KvNumbers::fp8_e4m3) return E4M3_VALUES[static_cast<uint8_t>(head[at])];
  uint16_t bits;
  std::memcpy(&bits, head + 2 * at, sizeof bits);
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

void read_head(const KvPool& pool, int64_t page, int layer, int side, int kv_head, float* out) {
  const std::byte* head = pool.head(page, layer, side, kv_head);
  const float scale = side == 0 ? k_scale(pool, layer) : v_scale(pool, layer);
  for (int token = 0; token < pool.page_size; ++token)
    for (int dim = 0; dim < pool.head_dim; ++dim) {
      const size_t at = side == 0 ? k_place(pool, token, dim) : v_place(pool, token, dim);
      out[token * pool.head_dim + dim] = number_at(pool, head, at) * scale;
    }
}

}  // namespace
}  // namespace bulkhead
