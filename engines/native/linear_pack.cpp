// Packing: weights as they lie in an artefact are put into the order that `linear_layout.h` tells.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "linear.h"
#include "linear_layout.h"

namespace bulkhead {
namespace {

uint16_t bf16_of_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Writes the groups of one block, a value and a scale at a time.
class BlockWriter {
 public:
  BlockWriter(Weights weights, std::byte* block) : weights_(weights), block_(block) {}

  void set_scale(int row, int group, uint16_t scale) {
    std::memcpy(block_ + scales_at(weights_, group) + row * sizeof scale, &scale, sizeof scale);
  }

  // `k` within the group.
  void set_int8(int row, int group, int k, int value) {
    at(group, k / 4, row * 4 + k % 4) = static_cast<std::byte>(value + INT8_OFFSET);
  }
  void set_int4(int row, int group, int k, int value) {
    const int shift = k % 8 < 4 ? 0 : 4;
    std::byte& pair = at(group, k / 8, row * 4 + k % 4);
    pair = (pair & std::byte{0xf0} >> shift) | std::byte(value + INT4_OFFSET) << shift;
  }

 private:
  std::byte& at(int group, int line, int offset) {
    return block_[lines_at(weights_, group) + line * LINE + offset];
  }

  Weights weights_;
  std::byte* block_;
};

int nibble_of(const uint8_t* w, int k, int row, int at) {
  const uint8_t pair = w[static_cast<size_t>(row / 2) * k + at];
  const int nibble = row % 2 ? pair >> 4 : pair & 15;
  return nibble < 8 ? nibble : nibble - 16;
}

uint16_t scale_of(const uint16_t* values) {
  float highest = 0;
  for (int i = 0; i < INPUT_GROUP; ++i) {
    const float size = std::fabs(float_of_bf16(values[i]));
    if (size > highest || std::isnan(size)) highest = size;  // a NaN stays
  }
  return bf16_of_float(highest / 127);
}

int rounded(float value, float scale) {
  const float steps = value / scale;
  return std::isfinite(steps) ? std::clamp(static_cast<int>(std::nearbyint(steps)), -127, 127) : 0;
}

void write_int8_group(BlockWriter& block, int row, int group, const uint16_t* values) {
  const uint16_t scale = scale_of(values);
  block.set_scale(row, group, scale);
  for (int i = 0; i < INPUT_GROUP; ++i)
    block.set_int8(row, group, i, rounded(float_of_bf16(values[i]), float_of_bf16(scale)));
}

}  // namespace

void pack_bf16(const uint16_t* w, int n, int k, std::byte* out) {
  const size_t bytes = block_bytes(Weights::bf16, k, 0);
  for (int start = 0; start < n; start += BLOCK, out += bytes) {
    std::memset(out, 0, bytes);
    for (int row = 0; row < std::min(BLOCK, n - start); ++row) {
      const uint16_t* of_row = w + static_cast<size_t>(start + row) * k;
      for (int at = 0; at < k; at += 2) std::memcpy(out + at / 2 * LINE + row * 4, of_row + at, 4);
    }
  }
}

void pack_int4(const uint8_t* w, const float* scales, int n, int k, int group, std::byte* out) {
  const size_t bytes = block_bytes(Weights::int4, k, group);
  for (int start = 0; start < n; start += BLOCK, out += bytes) {
    std::memset(out, 0, bytes);
    BlockWriter block(Weights::int4, out);
    for (int row = 0; row < std::min(BLOCK, n - start); ++row) {
      const float* of_row = scales + static_cast<size_t>(start + row) * (k / group);
      for (int at = 0; at < k; at += INPUT_GROUP)
        block.set_scale(row, at / INPUT_GROUP, bf16_of_float(of_row[at / group]));
      for (int at = 0; at < k; ++at)
        block.set_int4(row, at / INPUT_GROUP, at % INPUT_GROUP, nibble_of(w, k, start + row, at));
    }
  }
}

void pack_int8(const uint16_t* w, int n, int k, std::byte* out) {
  const size_t bytes = block_bytes(Weights::int8, k, INPUT_GROUP);
  for (int start = 0; start < n; start += BLOCK, out += bytes) {
    std::memset(out, 0, bytes);
    BlockWriter block(Weights::int8, out);
    for (int row = 0; row < std::min(BLOCK, n - start); ++row) {
      const uint16_t* of_row = w + static_cast<size_t>(start + row) * k;
      for (int group = 0; group < k / INPUT_GROUP; ++group)
        write_int8_group(block, row, group, of_row + group * INPUT_GROUP);
    }
  }
}

}  // namespace bulkhead
