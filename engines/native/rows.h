// What happens to single rows between the products: norms, conversions, SwiGLU, RoPE. In float32.
#pragma once

#include <cstdint>

#include "cpu.h"

namespace bulkhead {

struct RowKernels {
  // out = x / sqrt(mean(x^2) + eps) * weight, over k values. `out` may be `x`.
  void (*rms_norm)(const float* x, const float* weight, float eps, int k, float* out);
  // Rounded to nearest even, after multiplication by `factors` [k] unless that is null (AWQ's
  // pre_quant_scale). NaN stays NaN.
  void (*to_bf16)(const float* x, const float* factors, int k, uint16_t* out);
  // For each 64 of k (k is a multiple of 64): scale = amax / 127, q = round_to_even(x / scale).
  // A group that holds a NaN or an infinity has a scale of NaN, so that the fault shows.
  // One whose numbers are all under 2^-120 is of zeros.
  void (*to_int8)(const float* x, const float* factors, int k, int8_t* out, float* scales,
                  int32_t* sums);
  // out = gate / (1 + exp(-gate)) * up. `out` may be `gate`.
  void (*swiglu)(const float* gate, const float* up, int k, float* out);
  // Turns each head of x [heads, dim] in place: halves (a, b) -> (a cos - b sin, b cos + a sin).
  // cos and sin [dim / 2] are those of the row's position.
  void (*rope)(float* x, int heads, int dim, const float* cos, const float* sin);
  // The index of the highest of x, the first of equals; -1 if any is NaN or the highest infinite.
  int (*argmax)(const float* x, int n);
};

const RowKernels& row_kernels(Isa isa);

}  // namespace bulkhead
