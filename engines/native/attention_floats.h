// Attention in float32 lanes, for CPUs without bf16 products: a piece's K and V are widened first.
//
// K then lies [dim, token] with a stride of Sizes::stride, V [token, dim].
#pragma once

#include "attention_steps.h"
#include "attention_tiles.h"

namespace bulkhead {
namespace {

// Number `i` of the 2 (bf16) or 4 (e4m3) that each word holds, the lowest first.
template <KvNumbers numbers>
[[gnu::always_inline]] inline Floats number_of(Words words, int i) {
  if constexpr (numbers == KvNumbers::bf16) {
    return as_floats(i == 0 ? words << 16 : words & 0xffff0000);
  } else {
    const Words high = words << (24 - 8 * i), size = high >> 4 & 0x07f00000;
    const Words nan = size == 0x07f00000 ? Words{} + 0x7fc00000 : Words{};
    // Exponent and fraction go where a float has them; 2^120 is what the two biases differ by.
    return as_floats(size | (high & 0x80000000) | nan) * 0x1p120f;
  }
}

template <KvNumbers numbers>
void widen_k(const Sizes& sizes, const std::byte* page, int num_tokens, float* k) {
  constexpr int unit = numbers == KvNumbers::bf16 ? 2 : 4;
  for (int dim = 0; dim < sizes.head_dim; dim += unit) {
    const std::byte* line = page + static_cast<ptrdiff_t>(dim / unit) * sizes.page_size * 4;
    for_lanes(num_tokens, [&](int token, int n) {
      const Words words = load_words(line + token * 4, n);
      for (int i = 0; i < unit; ++i) {
        const int at = dim + (unit == 4 ? e4m3_order(i) : i);
        store(k + static_cast<ptrdiff_t>(at) * sizes.stride + token, number_of<numbers>(words, i),
              n);
      }
    });
  }
}

template <KvNumbers numbers>
void widen_v(const Sizes& sizes, const std::byte* page, int num_tokens, float* v) {
  for (int token = 0; token < num_tokens; token += 2) {
    float* first = v + static_cast<ptrdiff_t>(token) * sizes.head_dim;
    float* second = first + sizes.head_dim;
    for (int dim = 0; dim < sizes.head_dim; dim += LANES) {
      const ptrdiff_t at = token / 2 * sizes.head_dim + dim;
      const Words pairs = load_pairs<numbers>(page, at);
      store(first + dim, number_of<numbers>(pairs, 0));
      if (token + 1 < num_tokens) store(second + dim, number_of<numbers>(pairs, 1));
    }
  }
}

template <int ROWS>
void score_rows(const Sizes& sizes, const float* q, const float* k, int num_tokens, float* scores) {
  constexpr int WIDTH = 2;
  for (int token = 0; token < num_tokens; token += WIDTH * LANES) {
    Floats sums[ROWS][WIDTH]{};
    for (int dim = 0; dim < sizes.head_dim; ++dim) {
      const float* line = k + static_cast<ptrdiff_t>(dim) * sizes.stride + token;
      const Floats tokens[WIDTH]{load(line), load(line + LANES)};
      for (int row = 0; row < ROWS; ++row)
        for (int i = 0; i < WIDTH; ++i)
          sums[row][i] = fused(all(q[row * sizes.head_dim + dim]), tokens[i], sums[row][i]);
    }
    for (int row = 0; row < ROWS; ++row)
      for (int i = 0; i < WIDTH; ++i)
        store(scores + row * sizes.stride + token + i * LANES, sums[row][i]);
  }
}

// Adds tokens first..last-1 of V, weighed, to the rows of `mixed`.
template <int ROWS>
void mix_rows(const Sizes& sizes, const float* weights, const float* v, int first, int last,
              float* mixed) {
  constexpr int WIDTH = 2;
  for (int dim = 0; dim < sizes.head_dim; dim += WIDTH * LANES) {
    Floats sums[ROWS][WIDTH];
    for (int row = 0; row < ROWS; ++row)
      for (int i = 0; i < WIDTH; ++i)
        sums[row][i] = load(mixed + row * sizes.head_dim + dim + i * LANES);
    for (int token = first; token < last; ++token) {
      const float* line = v + static_cast<ptrdiff_t>(token) * sizes.head_dim + dim;
      const Floats values[WIDTH]{load(line), load(line + LANES)};
      for (int row = 0; row < ROWS; ++row)
        for (int i = 0; i < WIDTH; ++i)
          sums[row][i] = fused(all(weights[row * sizes.stride + token]), values[i], sums[row][i]);
    }
    for (int row = 0; row < ROWS; ++row)
      for (int i = 0; i < WIDTH; ++i)
        store(mixed + row * sizes.head_dim + dim + i * LANES, sums[row][i]);
  }
}

struct FloatKernel : Steps {
  static void load_query(const Tile& tile, int row, const float* q) {
    std::memcpy(tile.room.queries + row * tile.sizes.head_dim, q, tile.sizes.head_dim * 4);
  }

  static void score(const Tile& tile, const Piece& piece, int first) {
    if (tile.pool.numbers == KvNumbers::bf16)
      widen<KvNumbers::bf16>(tile, piece);
    else
      widen<KvNumbers::fp8_e4m3>(tile, piece);
    for_row_blocks<4>(first, tile.num_rows(), [&]<int ROWS>(int row) {
      score_rows<ROWS>(tile.sizes, tile.room.queries + row * tile.sizes.head_dim, tile.room.k,
                       tile.room.seen[row + ROWS - 1], tile.room.scores + row * tile.sizes.stride);
    });
  }

  static void mix(const Tile& tile, const Piece&, int first, const Sums& sums) {
    for_row_blocks<4>(first, tile.num_rows(), [&]<int ROWS>(int row) {
      const float* weights = tile.room.scores + row * tile.sizes.stride;
      float* mixed = sums.mixed + row * tile.sizes.head_dim;
      const int common = tile.room.seen[row];
      mix_rows<ROWS>(tile.sizes, weights, tile.room.v, 0, common, mixed);
      for (int i = 1; i < ROWS; ++i)  // later queries see more
        mix_rows<1>(tile.sizes, weights + i * tile.sizes.stride, tile.room.v, common,
                    tile.room.seen[row + i], mixed + i * tile.sizes.head_dim);
    });
  }

 private:
  template <KvNumbers numbers>
  static void widen(const Tile& tile, const Piece& piece) {
    const int page_size = tile.sizes.page_size;
    for (int i = 0; i < piece.num_pages; ++i) {
      const int start = i * page_size, left = piece.num_tokens - start;
      const int num_tokens = left < page_size ? left : page_size;
      const bool is_last = i + 1 == piece.num_pages;
      fetch_head(tile.pool, is_last ? piece.soon[0] : piece.k[i + 1]);
      if (!is_last) fetch_head(tile.pool, piece.v[i + 1]);
      widen_k<numbers>(tile.sizes, piece.k[i], num_tokens, tile.room.k + start);
      widen_v<numbers>(tile.sizes, piece.v[i], num_tokens,
                       tile.room.v + static_cast<ptrdiff_t>(start) * tile.sizes.head_dim);
    }
  }
};

}  // namespace
}  // namespace bulkhead
