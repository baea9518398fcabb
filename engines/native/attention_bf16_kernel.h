// The steps of attention_tiles.h with bf16 products. `Codes` tells how e4m3 becomes bfloat16.
#pragma once

#include "attention_bf16.h"

namespace bulkhead {
namespace {

// Of 32 dims whose sums lie as unpacked e4m3 numbers do, the first and the last 16 in order.
[[gnu::always_inline]] inline void in_order(__m512& a, __m512& b) {
  const __m512i low = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  const __m512 first = _mm512_permutex2var_ps(a, low, b);
  b = _mm512_permutex2var_ps(a, high, b);
  a = first;
}

template <class Codes>
struct Bf16Kernel : Steps {
  static void load_query(const Tile& tile, int row, const float* q) {
    uint16_t* to = queries(tile, row);
    for (int dim = 0; dim < tile.sizes.head_dim; dim += CHUNK)
      to_bf16(_mm512_loadu_ps(q + dim), to + dim);
  }

  static void score(const Tile& tile, const Piece& piece, int first) {
    if (tile.pool.numbers == KvNumbers::bf16)
      return score_with(Bf16Numbers{}, tile, piece.k, piece.v, first);
    const E4m3Numbers<Codes> numbers{};
    if (tile.num_rows() - first <= MANY_ROWS)
      return score_with(numbers, tile, piece.k, piece.v, first);
    const std::byte* pages[PIECE_PAGES];
    for (int i = 0; i < piece.num_pages; ++i)
      pages[i] = converted_k(numbers, tile.sizes, piece.k[i], page_in(tile, tile.room.k, i));
    score_with(Bf16Numbers{}, tile, pages, pages, first);
  }

  // The first lines are on their way while queries are converted.
  static void prepare(const Tile& tile, const Piece& piece) {
    if (tile.num_rows() > MANY_ROWS) return;
    for (int i = 0; i < piece.num_pages; ++i) fetch_head(tile.pool, piece.k[i]);
  }

  static float weigh(const Tile& tile, int row, float factor, const Sums& sums) {
    float* scores = tile.room.scores + row * tile.sizes.stride;
    const int seen = tile.room.seen[row];
    const float rescale = raise(sums, row, highest_score(scores, seen) * factor);
    const __m512 by = _mm512_set1_ps(factor), less = _mm512_set1_ps(-sums.highest[row]);
    const auto weight = [&](int i) {
      const int left = seen - i;
      const __mmask16 those = left >= CHUNK ? 0xffff : left > 0 ? (1 << left) - 1 : 0;
      const __m512 score = _mm512_maskz_loadu_ps(those, scores + i);
      return _mm512_maskz_mov_ps(those, exp2(_mm512_fmadd_ps(score, by, less)));
    };
    const auto ones = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
    auto* weights = reinterpret_cast<uint16_t*>(scores);  // which lie no further than their scores
    __m512 total = _mm512_setzero_ps();                   // of what is stored
    for (int i = 0; i < seen; i += 2 * CHUNK) {
      const __m512bh both = _mm512_cvtne2ps_pbh(weight(i + CHUNK), weight(i));
      _mm512_storeu_si512(weights + i, reinterpret_cast<__m512i>(both));
      total = _mm512_dpbf16_ps(total, both, ones);
    }
    sums.weight[row] = sums.weight[row] * rescale + _mm512_reduce_add_ps(total);
    return rescale;
  }

  static void mix(const Tile& tile, const Piece& piece, int first, const Sums& sums) {
    if (tile.pool.numbers == KvNumbers::bf16)
      return mix_with(Bf16Numbers{}, tile, piece.v, piece.soon, first, sums);
    const E4m3Numbers<Codes> numbers{};
    if (tile.num_rows() - first <= MANY_ROWS)
      return mix_with(numbers, tile, piece.v, piece.soon, first, sums);
    const std::byte* pages[PIECE_PAGES];
    for (int i = 0; i < piece.num_pages; ++i)
      pages[i] = converted_v(numbers, tile.sizes, piece.v[i], page_in(tile, tile.room.v, i));
    mix_with(Bf16Numbers{}, tile, pages, pages, first, sums);
  }

  static void write(const KvPool& pool, const float* mixed, float factor, float* out) {
    int dim = 0;
    for (; dim + 2 * CHUNK <= pool.head_dim; dim += 2 * CHUNK) {
      __m512 a = _mm512_loadu_ps(mixed + dim), b = _mm512_loadu_ps(mixed + dim + CHUNK);
      if (pool.numbers == KvNumbers::fp8_e4m3) in_order(a, b);
      store_zeros_unsigned(out + dim, a * factor);
      store_zeros_unsigned(out + dim + CHUNK, b * factor);
    }
    if (dim < pool.head_dim)
      store_zeros_unsigned(out + dim, _mm512_loadu_ps(mixed + dim) * factor);
  }

 protected:
  // Nothing added to a sum turns -0 to 0: so the sign of a zero tells nothing of what was added.
  static void store_zeros_unsigned(float* to, __m512 exact) {
    _mm512_storeu_ps(to, exact + _mm512_setzero_ps());
  }

  static uint16_t* queries(const Tile& tile, int row) {
    return reinterpret_cast<uint16_t*>(tile.room.queries) + row * tile.sizes.head_dim;
  }

  static void to_bf16(__m512 exact, uint16_t* to) {
    const auto bits = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(exact));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
  }

  static std::byte* page_in(const Tile& tile, float* room, int i) {
    return reinterpret_cast<std::byte*>(room) +
           static_cast<size_t>(i) * tile.sizes.page_size * tile.sizes.head_dim * 2;
  }

  template <class Numbers>
  static void score_with(const Numbers& numbers, const Tile& tile, const std::byte* const* pages,
                         const std::byte* const* soon, int first) {
    for_row_blocks<8>(first, tile.num_rows(), [&]<int ROWS>(int row) {
      score_rows<ROWS>(numbers, tile.sizes, queries(tile, row), pages, soon,
                       tile.room.seen[row + ROWS - 1], tile.room.scores + row * tile.sizes.stride);
    });
  }

  template <class Numbers>
  static void mix_with(const Numbers& numbers, const Tile& tile, const std::byte* const* pages,
                       const std::byte* const* soon, int first, const Sums& sums) {
    const Sizes& sizes = tile.sizes;
    const Pairs pairs{pages, soon, sizes.page_size / 2,
                      static_cast<size_t>(sizes.head_dim) * 2 * Numbers::BYTES};
    for_row_blocks<4>(first, tile.num_rows(), [&]<int ROWS>(int row) {
      const auto* weights = reinterpret_cast<uint16_t*>(tile.room.scores + row * sizes.stride);
      float* mixed = sums.mixed + row * sizes.head_dim;
      const int least = tile.room.seen[row], most = tile.room.seen[row + ROWS - 1];
      if (least == most) return mix_rows<ROWS>(numbers, sizes, weights, pairs, 0, most, mixed);
      const int common = least / 2 * 2;
      mix_rows<ROWS>(numbers, sizes, weights, pairs, 0, common, mixed);
      for (int i = 0; i < ROWS; ++i)  // later queries see more
        mix_rows<1>(numbers, sizes, weights + i * sizes.stride * 2, pairs, common,
                    tile.room.seen[row + i], mixed + i * sizes.head_dim);
    });
  }

  template <class Numbers>
  static const std::byte* converted_k(const Numbers& numbers, const Sizes& sizes,
                                      const std::byte* page, std::byte* to) {
    const size_t line = static_cast<size_t>(sizes.page_size) * 4;
    for (int token = 0; token < sizes.page_size; token += CHUNK) {
      const int left = sizes.page_size - token;
      const __mmask16 tokens = left < CHUNK ? (1 << left) - 1 : 0xffff;
      for (int quad = 0; quad < sizes.head_dim / 4; ++quad) {
        const Two two = numbers.k(page + token * 4, quad, sizes.page_size, tokens);
        std::byte* at = to + quad * 2 * line + token * 4;
        _mm512_mask_storeu_epi32(at, tokens, two.first);
        _mm512_mask_storeu_epi32(at + line, tokens, two.second);
      }
    }
    return to;
  }

  template <class Numbers>
  static const std::byte* converted_v(const Numbers& numbers, const Sizes& sizes,
                                      const std::byte* page, std::byte* to) {
    for (int pair = 0; pair < sizes.page_size / 2; ++pair) {
      int dim = 0;
      for (; dim + 2 * CHUNK <= sizes.head_dim; dim += 2 * CHUNK, page += 64, to += 128) {
        const Two two = numbers.v(page);
        _mm512_storeu_si512(to, two.first);
        _mm512_storeu_si512(to + 64, two.second);
      }
      if (dim < sizes.head_dim) {
        _mm512_storeu_si512(to, numbers.v_half(page));
        page += 32, to += 64;
      }
    }
    return to - static_cast<size_t>(sizes.page_size) * sizes.head_dim * 2;
  }
};

}  // namespace
}  // namespace bulkhead
