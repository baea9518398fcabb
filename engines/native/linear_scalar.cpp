// The products on any CPU: what the others must equal, and the plainest of them to read.
//
// A few rows of x share each group of weights once it's unpacked. Where x is int8 the results are
// those of every other instruction set, bit for bit.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "linear_kinds.h"
#include "linear_layout.h"

namespace bulkhead {
namespace {

constexpr int ROWS = 8;  // of x at a time

struct Sums {
  float of[ROWS][BLOCK] = {};
};

// The weights of one group of a block, or of all k of a bf16 one: [k][16 rows].
template <class Value>
struct Group {
  Value values[INPUT_GROUP][BLOCK];
  float scales[BLOCK];
};

uint16_t half_at(const std::byte* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  return half;
}

// One of the 4 values that three bytes hold, each in a line of its own.
int six_bits(const uint8_t* first, int which) {
  if (which < 3) return (first[which * LINE] & 63) - INT6_OFFSET;
  return (first[0] >> 6 | first[LINE] >> 6 << 2 | first[2 * LINE] >> 6 << 4) - INT6_OFFSET;
}

template <Weights weights, class Value>
void unpack(const std::byte* block, int group, Group<Value>& out) {
  for (int row = 0; row < BLOCK; ++row)
    out.scales[row] = float_of_bf16(half_at(block + scales_at(weights, group) + row * 2));
  const auto* lines = reinterpret_cast<const uint8_t*>(block + lines_at(weights, group));
  for (int k = 0; k < INPUT_GROUP; ++k)
    for (int row = 0; row < BLOCK; ++row) {
      if constexpr (weights == Weights::int8) {
        out.values[k][row] = lines[k / 4 * LINE + row * 4 + k % 4] - INT8_OFFSET;
      } else if constexpr (weights == Weights::int6) {
        out.values[k][row] = six_bits(lines + k / 16 * 3 * LINE + row * 4 + k % 4, k % 16 / 4);
      } else {
        const int pair = lines[k / 8 * LINE + row * 4 + k % 4];
        out.values[k][row] = (k % 8 < 4 ? pair & 15 : pair >> 4) - INT4_OFFSET;
      }
    }
}

template <Weights weights>
void sum_int8(const std::byte* block, const Inputs& x, int first_row, int rows, Sums& sums) {
  Group<int16_t> w;
  for (int group = 0; group < x.k / INPUT_GROUP; ++group) {
    unpack<weights>(block, group, w);
    for (int r = 0; r < rows; ++r) {
      const size_t at = static_cast<size_t>(first_row + r) * x.k + group * INPUT_GROUP;
      int32_t exact[BLOCK] = {};
      for (int k = 0; k < INPUT_GROUP; ++k)
        for (int j = 0; j < BLOCK; ++j) exact[j] += w.values[k][j] * x.int8[at + k];
      const float scale = x.scales[at / INPUT_GROUP];
      for (int j = 0; j < BLOCK; ++j)
        sums.of[r][j] = std::fma(static_cast<float>(exact[j]), scale * w.scales[j], sums.of[r][j]);
    }
  }
}

// A product of two bf16 is exact in float32, so that fused or not its sums are the same.
void sum_int4_bf16(const std::byte* block, const Inputs& x, int first_row, int rows, Sums& sums) {
  Group<float> w;
  for (int group = 0; group < x.k / INPUT_GROUP; ++group) {
    unpack<Weights::int4>(block, group, w);
    for (int r = 0; r < rows; ++r) {
      const size_t at = static_cast<size_t>(first_row + r) * x.k + group * INPUT_GROUP;
      float of_group[BLOCK] = {};
      for (int k = 0; k < INPUT_GROUP; ++k) {
        const float value = float_of_bf16(x.bf16[at + k]);
        for (int j = 0; j < BLOCK; ++j) of_group[j] += w.values[k][j] * value;
      }
      for (int j = 0; j < BLOCK; ++j)
        sums.of[r][j] = std::fma(of_group[j], w.scales[j], sums.of[r][j]);
    }
  }
}

void sum_bf16(const std::byte* block, const Inputs& x, int first_row, int rows, Sums& sums) {
  for (int k = 0; k < x.k; ++k) {
    float w[BLOCK];
    for (int j = 0; j < BLOCK; ++j)
      w[j] = float_of_bf16(half_at(block + k / 2 * LINE + j * 4 + k % 2 * 2));
    for (int r = 0; r < rows; ++r) {
      const float value = float_of_bf16(x.bf16[static_cast<size_t>(first_row + r) * x.k + k]);
      for (int j = 0; j < BLOCK; ++j) sums.of[r][j] += w[j] * value;
    }
  }
}

using Sum = void (*)(const std::byte* block, const Inputs& x, int first_row, int rows, Sums& sums);

template <Weights weights, Sum sum>
void product(const Matrix& w, int first, int last, const Inputs& x, float* out, ptrdiff_t ld,
             bool add) {
  const size_t bytes = block_bytes(weights, w.k, w.group);
  for (int block = first; block < last; ++block) {
    const int columns = std::min(BLOCK, w.n - block * BLOCK);
    for (int row = 0; row < x.num_rows; row += ROWS) {
      const int rows = std::min(ROWS, x.num_rows - row);
      Sums sums;
      sum(w.data + block * bytes, x, row, rows, sums);
      for (int r = 0; r < rows; ++r) {
        float* to = out + (row + r) * ld + block * BLOCK;
        for (int j = 0; j < columns; ++j) to[j] = add ? to[j] + sums.of[r][j] : sums.of[r][j];
      }
    }
  }
}

}  // namespace

const LinearKernels LINEAR_SCALAR = {
    product<Weights::bf16, sum_bf16>,
    product<Weights::int4, sum_int4_bf16>,
    product<Weights::int4, sum_int8<Weights::int4>>,
    product<Weights::int8, sum_int8<Weights::int8>>,
    product<Weights::int6, sum_int8<Weights::int6>>,
};

}  // namespace bulkhead
