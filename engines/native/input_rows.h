// The rows of x that a product takes: float32 numbers, rounded to what its kind wants.
#pragma once

#include "linear.h"
#include "memory.h"
#include "rows.h"

namespace bulkhead {

enum class InputNumbers { bf16, int8 };

class InputRows {
 public:
  // For as many rows of k numbers each; k is a multiple of 64 for int8.
  void reserve(int num_rows, int k, InputNumbers numbers) {
    k_ = k;
    numbers_ = numbers;
    const size_t size = static_cast<size_t>(num_rows) * k;
    if (numbers == InputNumbers::bf16) {
      bf16_.reserve(size);
      return;
    }
    int8_.reserve(size);
    scales_.reserve(size / INPUT_GROUP);
    sums_.reserve(size / INPUT_GROUP);
  }

  // Numbers first..first+count-1 of a row, multiplied with `factors` [k] unless that is null. Both
  // are multiples of 64 for int8.
  void fill(const RowKernels& kernels, int row, const float* x, const float* factors, int first,
            int count) const {
    const size_t at = static_cast<size_t>(row) * k_ + first;
    const float* own = factors ? factors + first : nullptr;
    if (numbers_ == InputNumbers::bf16) {
      kernels.to_bf16(x, own, count, bf16_.data() + at);
      return;
    }
    const size_t group = at / INPUT_GROUP;
    kernels.to_int8(x, own, count, int8_.data() + at, scales_.data() + group, sums_.data() + group);
  }

  // Rows first..first+count-1, for a product.
  Inputs rows(int first, int count) const {
    const size_t at = static_cast<size_t>(first) * k_, group = at / INPUT_GROUP;
    if (numbers_ == InputNumbers::bf16)
      return {count, k_, bf16_.data() + at, nullptr, nullptr, nullptr};
    return {count, k_, nullptr, int8_.data() + at, scales_.data() + group, sums_.data() + group};
  }

 private:
  int k_ = 0;
  InputNumbers numbers_ = InputNumbers::bf16;
  Buffer<uint16_t> bf16_;
  Buffer<int8_t> int8_;
  Buffer<float> scales_;
  Buffer<int32_t> sums_;
};

}  // namespace bulkhead
