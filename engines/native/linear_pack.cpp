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
  // Of 16 the last 4 go into the high bits of the bytes of the others.
  void set_int6(int row, int group, int k, int value) {
    const int stored = value + INT6_OFFSET, first = k / 16 * 3, offset = row * 4 + k % 4;
    if (k % 16 < 12) return put(at(group, first + k % 16 / 4, offset), 0, 6, stored);
    for (int line = 0; line < 3; ++line)
      put(at(group, first + line, offset), 6, 2, stored >> 2 * line & 3);
  }
  void set_int4(int row, int group, int k, int value) {
    put(at(group, k / 8, row * 4 + k % 4), k % 8 < 4 ? 0 : 4, 4, value + INT4_OFFSET);
  }

 private:
  static void put(std::byte& byte, int shift, int bits, int value) {
    const std::byte mask{static_cast<uint8_t>((1 << bits) - 1)};
    byte = (byte & ~(mask << shift)) | std::byte(value) << shift;
  }

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

uint16_t scale_of(const uint16_t* values, int most) {
  float highest = 0;
  for (int i = 0; i < INPUT_GROUP; ++i) {
    const float size = std::fabs(float_of_bf16(values[i]));
    if (size > highest || std::isnan(size)) highest = size;  // a NaN stays
  }
  return bf16_of_float(highest / most);
}

int rounded(float value, float scale, int most) {
  const float steps = value / scale;
  if (!std::isfinite(steps)) return 0;
  return std::clamp(static_cast<int>(std::nearbyint(steps)), -most, most);
}

using Set = void (BlockWriter::*)(int row, int group, int k, int value);

// Rounds bf16 to whole numbers of at most `most`.
void pack_rounded(Weights weights, Set set, int most, const uint16_t* w, int n, int k,
                  std::byte* out) {
  const size_t bytes = block_bytes(weights, k, INPUT_GROUP);
  for (int start = 0; start < n; start += BLOCK, out += bytes) {
    std::memset(out, 0, bytes);
    BlockWriter block(weights, out);
    for (int row = 0; row < std::min(BLOCK, n - start); ++row)
      for (int group = 0; group < k / INPUT_GROUP; ++group) {
        const uint16_t* values = w + static_cast<size_t>(start + row) * k + group * INPUT_GROUP;
        const uint16_t scale = scale_of(values, most);
        block.set_scale(row, group, scale);
        for (int i = 0; i < INPUT_GROUP; ++i)
          (block.*set)(row, group, i,
                       rounded(float_of_bf16(values[i]), float_of_bf16(scale), most));
      }
  }
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
  pack_rounded(Weights::int8, &BlockWriter::set_int8, 127, w, n, k, out);
}

void pack_int6(const uint16_t* w, int n, int k, std::byte* out) {
  pack_rounded(Weights::int6, &BlockWriter::set_int6, 31, w, n, k, out);
}

}  // namespace bulkhead
