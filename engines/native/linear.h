// Matrix products with weights that never change: y = x W^T.
//
// W [n, k] is packed once: blocks of 16 rows of W (one AVX-512 register of outputs), k ascending
// within a block, so that a product reads it as one stream. One layout serves every instruction set.
// An output is summed over k in one fixed order, whoever shares the call: a row's result is the same
// bits alone, in a batch, or in a prompt of any cut.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu.h"

namespace bulkhead {

inline constexpr int BLOCK = 16;          // rows of W in a block
inline constexpr int INPUT_GROUP = 64;    // values of x that share an int8 scale

enum class Weights { bf16, int8, int6, int4 };  // intN is symmetric, with a scale a group of k

struct Matrix {
  Weights weights;
  int n, k;
  int group;              // values of k that share a scale: 64 or 128; unused for bf16
  const std::byte* data;  // aligned to 64 bytes

  int num_blocks() const { return (n + BLOCK - 1) / BLOCK; }
};

size_t block_bytes(Weights weights, int k, int group);  // a multiple of 64

// The rows of x that a product takes, in the one form that its kind wants; the others may be null.
struct Inputs {
  int num_rows, k;
  const uint16_t* bf16;      // [rows, k]
  const int8_t* int8;        // [rows, k]
  const float* scales;       // [rows, k / 64] of the int8 values
  const int32_t* sums;       // [rows, k / 64] the sum of each group's int8 values
};

// One product over the blocks first..last-1 of W: out[row * ld + j] = or += x[row] . W[j].
// `add` adds to what `out` holds. Rows of W past n (padding) are not written.
using Product = void (*)(const Matrix& w, int first, int last, const Inputs& x, float* out,
                         ptrdiff_t ld, bool add);

struct LinearKernels {
  Product bf16_bf16;  // W16A16
  Product int4_bf16;  // W4A16, as TensorRT-LLM computes it
  Product int4_int8;  // W4A8
  Product int8_int8;  // W8A8, for a language model's head
  Product int6_int8;  // W6A8, the same in three quarters of the bytes
};

const LinearKernels& linear_kernels(Isa isa);

// Packing, a block at a time; `out` holds num_blocks() * block_bytes() bytes, padding rows are zero.
void pack_bf16(const uint16_t* w, int n, int k, std::byte* out);
// ModelOpt's bytes [n/2, k] (row 2i in the low nibble, 2i+1 in the high, two's complement) and its
// scales float32 [n, k/group].
void pack_int4(const uint8_t* w, const float* scales, int n, int k, int group, std::byte* out);
// Rounds bf16 [n, k] to int8 with one scale (amax / 127) for each row and 64 of k.
void pack_int8(const uint16_t* w, int n, int k, std::byte* out);
// The same to int6 (amax / 31).
void pack_int6(const uint16_t* w, int n, int k, std::byte* out);

}  // namespace bulkhead
