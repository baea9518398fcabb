// How a packed block of W lies in memory: what the packers write and all kernels read.
//
// All of it is lines of 64 bytes, read in order. A line holds some k of all 16 rows of the block,
// one row after the other.
//
// bf16: a line for each 2 of k; of each row w[k], w[k + 1].
//
// int8, int6, int4: groups of 64 k, whatever the weights' own group is (a scale of 128 is written twice).
// Two groups lie together: a line of their scales (bf16; 16 rows of the first, then of the second),
// then the lines of the first, then those of the second. The second may be missing at the end.
// Values are stored as unsigned: value + 128, + 32, or + 8. AVX-512 multiplies unsigned by signed, and
// the offset times the sum of a group's x is taken off again.
//   int8: a line for each 4 of k; of each row 4 bytes.
//   int6: three lines for each 16 of k, the first 12 of them as int8's are; the two high bits of
//   these bytes hold the last 4 of k: bits 0 and 1 in the first line, 2 and 3, 4 and 5.
//   int4: a line for each 8 of k; of each row 4 bytes: k + i in the low nibble of byte i, k + 4 + i
//   in its high nibble.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "linear.h"

namespace bulkhead {

inline constexpr int LINE = 64;
inline constexpr int INT8_OFFSET = 128, INT6_OFFSET = 32, INT4_OFFSET = 8;

constexpr int lines_of_group(Weights weights) {
  return weights == Weights::int8 ? 16 : weights == Weights::int6 ? 12 : 8;
}

// Bytes from the start of a block to the scales of a group, and to its first line.
constexpr size_t scales_at(Weights weights, int group) {
  const size_t pair = LINE + size_t{2 * LINE} * lines_of_group(weights);
  return group / 2 * pair + group % 2 * BLOCK * sizeof(uint16_t);
}
constexpr size_t lines_at(Weights weights, int group) {
  const size_t lines = size_t{LINE} * lines_of_group(weights);
  return (group / 2) * (LINE + 2 * lines) + LINE + (group % 2) * lines;
}

inline float float_of_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

}  // namespace bulkhead
