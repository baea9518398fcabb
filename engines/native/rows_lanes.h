// The kernels of rows.h in lanes, for each instruction set that includes them.
#pragma once

#include <cmath>
#include <cstddef>

#include "lanes.h"
#include "rows.h"

namespace bulkhead {
namespace {

constexpr uint32_t INFINITE = 0x7f800000;  // the bits of infinity: those of a NaN are more

void rms_norm(const float* x, const float* weight, float eps, int k, float* out) {
  Floats squares{};
  for_lanes(k, [&](int i, int n) {
    const Floats values = load(x + i, n);
    squares = fused(values, values, squares);
  });
  const float factor = 1 / std::sqrt(total(squares) / static_cast<float>(k) + eps);
  for_lanes(k, [&](int i, int n) {
    store(out + i, load(x + i, n) * factor * load(weight + i, n), n);
  });
}

[[gnu::always_inline]] inline Floats scaled(const float* x, const float* factors, int i, int n) {
  return factors ? load(x + i, n) * load(factors + i, n) : load(x + i, n);
}

void to_bf16(const float* x, const float* factors, int k, uint16_t* out) {
  for_lanes(k, [&](int i, int n) {
    typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
    const Halves halves = __builtin_convertvector(bf16_of(scaled(x, factors, i, n)), Halves);
    std::memcpy(out + i, &halves, n * sizeof(uint16_t));
  });
}

constexpr int GROUP = 64;  // of int8 values that share a scale
constexpr int GROUP_LANES = GROUP / LANES;
constexpr float LEAST = 0x1p-120f;  // of a group with no number as large all are zero

uint32_t largest_size(const Floats (&values)[GROUP_LANES]) {  // its bits
  Words largest{};
  for (const Floats& lanes : values) {
    const Words size = __builtin_bit_cast(Words, lanes) & 0x7fffffff;
    largest = size > largest ? size : largest;
  }
  return highest(largest);
}

// Multiplied, since a division takes ten times as long.
int32_t round_group(const Floats (&values)[GROUP_LANES], float steps_of_one, int8_t* out) {
  Ints sums{};
  for (int i = 0; i < GROUP_LANES; ++i) {
    const Ints whole = __builtin_convertvector(nearest(values[i] * steps_of_one), Ints);
    sums += whole;
    typedef int8_t Bytes __attribute__((vector_size(LANES)));
    const Bytes bytes = __builtin_convertvector(whole, Bytes);
    std::memcpy(out + i * LANES, &bytes, sizeof bytes);
  }
  return total(sums);
}

void to_int8(const float* x, const float* factors, int k, int8_t* out, float* scales,
             int32_t* sums) {
  for (int group = 0; group < k / GROUP; ++group) {
    Floats values[GROUP_LANES];
    for (int i = 0; i < GROUP_LANES; ++i)
      values[i] = scaled(x, factors, group * GROUP + i * LANES, LANES);
    const uint32_t bits = largest_size(values);
    float amax;
    std::memcpy(&amax, &bits, sizeof amax);
    scales[group] = bits < INFINITE ? amax / 127 : NAN;
    if (amax >= LEAST && bits < INFINITE) {
      sums[group] = round_group(values, 127 / amax, out + group * GROUP);
    } else {
      sums[group] = 0;
      std::memset(out + group * GROUP, 0, GROUP);
    }
  }
}

void swiglu(const float* gate, const float* up, int k, float* out) {
  for_lanes(k, [&](int i, int n) {
    const Floats x = load(gate + i, n);
    store(out + i, x / (1.f + exp(-x)) * load(up + i, n), n);
  });
}

void rope(float* x, int heads, int dim, const float* cos, const float* sin) {
  const int half = dim / 2;
  for (int head = 0; head < heads; ++head) {
    float* first = x + static_cast<ptrdiff_t>(head) * dim;
    float* second = first + half;
    for_lanes(half, [&](int i, int n) {
      const Floats a = load(first + i, n), b = load(second + i, n);
      const Floats c = load(cos + i, n), s = load(sin + i, n);
      store(first + i, a * c - b * s, n);
      store(second + i, b * c + a * s, n);
    });
  }
}

bool has_lane(const Ints& found) {
  int32_t any = 0;
  for (int i = 0; i < LANES; ++i) any |= found[i];
  return any != 0;
}

int argmax(const float* x, int n) {
  Floats best = all(-INFINITY);
  Ints broken{};
  const int whole = n / LANES * LANES;
  for (int i = 0; i < whole; i += LANES) {
    const Floats values = load(x + i);
    best = values > best ? values : best;
    broken |= values != values;
  }
  float top = highest(best);
  bool has_nan = has_lane(broken);
  for (int i = whole; i < n; ++i) {
    top = x[i] > top ? x[i] : top;
    has_nan |= x[i] != x[i];
  }
  if (has_nan || std::isinf(top)) return -1;
  int i = 0;
  while (i < whole && !has_lane(load(x + i) == top)) i += LANES;
  while (i < n && x[i] != top) ++i;
  return i;
}

constexpr RowKernels KERNELS{rms_norm, to_bf16, to_int8, swiglu, rope, argmax};

}  // namespace
}  // namespace bulkhead
