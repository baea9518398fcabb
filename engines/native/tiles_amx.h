// AMX's tiles, by their instructions: GCC's own words for them (12, at least) lose what is stored
// into a configuration, and take no number of a tile from a template. For *_amx.cpp alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bulkhead {
namespace {

constexpr int AMX_ROWS = 16;

// Begins to use a thread's tiles, or to use them otherwise: they have AMX_ROWS rows of 64 bytes, but
// the first `x_tiles`, for x and for sums, have as many rows as x. What was in them is lost.
inline void configure_tiles(int x_rows, int x_tiles) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } wanted;
  for (int tile = 0; tile < 8; ++tile) {
    wanted.row_bytes[tile] = 64;
    wanted.rows[tile] = static_cast<uint8_t>(tile < x_tiles ? x_rows : AMX_ROWS);
  }
  asm volatile("ldtilecfg %0" ::"m"(wanted));
}

// Gives them up, since the system saves 8 KiB with each thread that has any.
inline void release_tiles() { asm volatile("tilerelease"); }

template <int TILE>
[[gnu::always_inline]] inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}

// Rows `stride` bytes apart.
template <int TILE>
[[gnu::always_inline]] inline void load_tile(const void* from, ptrdiff_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(TILE), "r"(from), "r"(stride));
}

template <int TILE>
[[gnu::always_inline]] inline void store_tile(void* to, ptrdiff_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(TILE), "r"(to), "r"(stride) : "memory");
}

// int32 sums[row][j] += the products of x[row]'s 64 bytes and W[j]'s, both signed. W lies as
// `linear_layout.h` has int8: 4 bytes of each of 16 rows, 16 times.
template <int SUMS, int X, int W>
[[gnu::always_inline]] inline void multiply_tiles() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(X), "i"(W));
}

// float32 sums[row][j] += the products of x[row]'s 32 bfloat16 and W[j]'s, which lie as pairs of each
// of 16 columns, 16 times. Even and odd products are added up each for themselves, then together,
// and then onto the sum; numbers under 2^-126 are zero.
template <int SUMS, int X, int W>
[[gnu::always_inline]] inline void multiply_bf16_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(X), "i"(W));
}

}  // namespace
}  // namespace bulkhead
