// A model of the Llama, Qwen2 or Qwen3 family: its shape and where its weights lie.
#pragma once

#include <cstdint>
#include <vector>

#include "input_rows.h"
#include "linear.h"

namespace bulkhead {

struct Shape {
  int vocab, hidden, inner;  // inner is a multiple of 16
  int heads, kv_heads, head_dim;
  int max_context;  // positions whose turns are known
  float eps;

  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }
  int qkv_size() const { return q_size() + 2 * kv_size(); }
};

// One linear layer: y = (x * factors) W^T + bias.
struct Linear {
  Matrix w;
  InputNumbers input;
  Product product;
  const float* factors = nullptr;  // [k], or null
  const float* bias = nullptr;     // [n], or null
};

// Gate and up lie in one matrix, by turns: as many rows of gate, then the same rows of up. The last
// rows of each may be fewer.
inline constexpr int GATE_ROWS = 64;

struct Layer {
  const float* attention_norm;
  Linear qkv;
  const float* q_norm;  // [head_dim], or null
  const float* k_norm;
  Linear output;
  const float* mlp_norm;
  Linear gate_up;
  Linear down;
};

struct Model {
  Shape shape;
  const uint16_t* embedding;  // bf16 [vocab, hidden]
  std::vector<Layer> layers;
  const float* norm;
  Linear head;
  const float* cos;  // [max_context, head_dim / 2]
  const float* sin;
};

}  // namespace bulkhead
