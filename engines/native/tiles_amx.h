// AMX's tiles, by their instructions: GCC's own words for them (12, at least) lose what is stored
// into a configuration, and take no number of a tile from a template. For *_amx.cpp alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bulkhead {
namespace {

constexpr int TILE_ROWS = 16;

// What a thread's tiles are while one of these is there: TILE_ROWS rows of 64 bytes, but those of x
// and of sums have as many rows as x. They are given up at the end, since the system saves 8 KiB
// with each thread that has any.
class Tiles {
 public:
  ~Tiles() {
    if (x_rows_) asm volatile("tilerelease");
  }

  // Tiles 0 to 3 have `x_rows` rows from here on; what was in any is lost where that is new.
  void take(int x_rows) {
    if (x_rows == x_rows_) return;
    x_rows_ = x_rows;
    Configuration wanted;
    for (int tile = 0; tile < 6; ++tile) {
      wanted.row_bytes[tile] = 64;
      wanted.rows[tile] = static_cast<uint8_t>(tile < 4 ? x_rows : TILE_ROWS);
    }
    asm volatile("ldtilecfg %0" ::"m"(wanted));
  }

 private:
  struct alignas(64) Configuration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };

  int x_rows_ = 0;
};

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

}  // namespace
}  // namespace bulkhead
