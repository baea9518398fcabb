// How a product is cut into tiles: some rows of x times some blocks of W, all sums in registers.
//
// A Tile has
//   MAX_ROWS and BLOCKS, what a tile has at most;
//   run<ROWS, BLOCKS>(const Spot&).
// Each output is summed in the same order whatever tile it falls into.
//
// Few rows take one block after the other: what they wait for is memory, and one stream from start
// to end is what it serves fastest (two or four at once: at half the speed). More rows compute for
// longer than the blocks take to come, but only blocks that were asked for early: the first tile
// of some blocks asks for those after them.
#pragma once

#include <algorithm>
#include <utility>

#include "linear.h"

namespace bulkhead {

inline constexpr int FEW_ROWS = 4;

// Where a tile begins, and what it takes.
struct Spot {
  const Matrix& w;
  const Inputs& x;
  size_t bytes_of_block;
  int block, row;
  float* out;  // of the first row and column of all
  ptrdiff_t ld;
  bool add;
  bool asks_ahead;

  const std::byte* data(int b) const { return w.data + (block + b) * bytes_of_block; }
  float* out_at(int r, int b) const { return out + (row + r) * ld + (block + b) * BLOCK; }
  int columns(int b) const { return std::min(BLOCK, w.n - (block + b) * BLOCK); }
};

template <class Tile, int BLOCKS, int... BEFORE>
void run_tile(int rows, const Spot& spot, std::integer_sequence<int, BEFORE...>) {
  ((rows == BEFORE + 1 ? Tile::template run<BEFORE + 1, BLOCKS>(spot) : void()), ...);
}

// The rows of one or more blocks, in tiles of nearly equal height.
template <class Tile, int BLOCKS>
void run_rows(Spot spot) {
  const int num_tiles = (spot.x.num_rows + Tile::MAX_ROWS - 1) / Tile::MAX_ROWS;
  for (int tile = 0, first = 0; tile < num_tiles; ++tile) {
    const int last = static_cast<int>(int64_t{spot.x.num_rows} * (tile + 1) / num_tiles);
    spot.row = first;
    spot.asks_ahead = BLOCKS > 1 && tile == 0;
    run_tile<Tile, BLOCKS>(last - first, spot, std::make_integer_sequence<int, Tile::MAX_ROWS>{});
    first = last;
  }
}

template <class Tile>
void run_product(const Matrix& w, int first, int last, const Inputs& x, float* out, ptrdiff_t ld,
                 bool add) {
  Spot spot{w, x, block_bytes(w.weights, w.k, w.group), first, 0, out, ld, add, false};
  int& block = spot.block;
  if (x.num_rows > FEW_ROWS)
    for (; last - block >= Tile::BLOCKS; block += Tile::BLOCKS) run_rows<Tile, Tile::BLOCKS>(spot);
  for (; block < last; ++block) run_rows<Tile, 1>(spot);
}

}  // namespace bulkhead
