// Attention on a CPU with AMX: 16 rows of a tile times 16 tokens of K, or 16 dims of V, at a time.
//
// AMX rounds its sums in an order of its own, so it serves every number of rows of a model whose
// shape suits it, and none of another. A row's sum takes V by units of 32 tokens from position 0:
// what it doesn't see of its last one weighs 0 and is finite, and adds nothing.
#ifdef BULKHEAD_AMX
#include "attention_bf16_kernel.h"
#include "attention_codes_vbmi.h"
#include "tiles_amx.h"

namespace bulkhead {

extern const AttentionKernels ATTENTION_AVX512VBMI;

namespace {

constexpr int UNIT = 32;       // dims of K, or tokens of V, that one product adds up
constexpr int TOGETHER = 4;    // products of one A
constexpr int A = TOGETHER, B = A + 1;  // tiles: before A are the sums, from B on three of B
constexpr int LINE = 64;

bool suits(const KvPool& pool) {
  return pool.page_size % CHUNK == 0 && Sizes(pool, pool.num_kv_heads).tokens % UNIT == 0 &&
         pool.head_dim % UNIT == 0;
}

// Some rows of A [rows, steps * UNIT], and how B lies: at each step, lines of 16 pairs.
struct Factors {
  const std::byte* a;
  ptrdiff_t a_stride;  // bytes, as all here
  int steps;
  ptrdiff_t b_step, b_stride;
};

// A B, and what is to be read after it, if that is to be fetched.
struct Spot {
  const std::byte* at;
  const std::byte* soon;
};

template <int SUM>
[[gnu::always_inline]] inline void add_product(const Factors& factors, const Spot& b, int step) {
  const ptrdiff_t at = step * factors.b_step;
  if (b.soon != nullptr)
    for (int line = 0; line < AMX_ROWS; ++line) fetch(b.soon + at + line * factors.b_stride);
  load_tile<B + SUM % 3>(b.at + at, factors.b_stride);
  multiply_bf16_tiles<SUM, A, B + SUM % 3>();
}

// COUNT tiles of sums, each with a `b` of its own.
template <int COUNT>
[[gnu::always_inline]] inline void add_products(const Factors& factors, const Spot* b) {
  for (int step = 0; step < factors.steps; ++step) {
    load_tile<A>(factors.a + step * LINE, factors.a_stride);
    add_product<0>(factors, b[0], step);
    if constexpr (COUNT > 1) add_product<1>(factors, b[1], step);
    if constexpr (COUNT > 2) add_product<2>(factors, b[2], step);
    if constexpr (COUNT > 3) add_product<3>(factors, b[3], step);
  }
}

template <int COUNT>
void set_products(const Factors& factors, const Spot* b, float* sums, ptrdiff_t stride) {
  zero_tile<0>();
  if constexpr (COUNT > 1) zero_tile<1>();
  if constexpr (COUNT > 2) zero_tile<2>(), zero_tile<3>();
  add_products<COUNT>(factors, b);
  store_tile<0>(sums, stride);
  if constexpr (COUNT > 1) store_tile<1>(sums + CHUNK, stride);
  if constexpr (COUNT > 2) store_tile<2>(sums + 2 * CHUNK, stride);
  if constexpr (COUNT > 3) store_tile<3>(sums + 3 * CHUNK, stride);
}

template <int COUNT>
void add_to_sums(const Factors& factors, const std::byte* b, float* sums, ptrdiff_t stride) {
  const Spot of[TOGETHER]{
      {b, nullptr}, {b + LINE, nullptr}, {b + 2 * LINE, nullptr}, {b + 3 * LINE, nullptr}};
  load_tile<0>(sums, stride);
  load_tile<1>(sums + CHUNK, stride);
  if constexpr (COUNT > 2) {
    load_tile<2>(sums + 2 * CHUNK, stride);
    load_tile<3>(sums + 3 * CHUNK, stride);
  }
  add_products<COUNT>(factors, of);
  store_tile<0>(sums, stride);
  store_tile<1>(sums + CHUNK, stride);
  if constexpr (COUNT > 2) {
    store_tile<2>(sums + 2 * CHUNK, stride);
    store_tile<3>(sums + 3 * CHUNK, stride);
  }
}

// What was stored is there before a tile is loaded.
void finish_stores() { asm volatile("" ::: "memory"); }

struct AmxKernel : Bf16Kernel<Codes> {
  using Base = Bf16Kernel<Codes>;

  // While a few rows attend to a piece, the next one is on its way: so memory never waits.
  static void prepare(const Tile& tile, const Piece& piece) {
    if (tile.num_rows() <= MANY_ROWS) {
      for (int i = 0; i < piece.num_pages; ++i) fetch_head(tile.pool, piece.k[i]);
      for (int i = 0; i < piece.num_pages; ++i) fetch_head(tile.pool, piece.v[i]);
    }
    configure_tiles(height(tile), A + 1);
  }

  static void score(const Tile& tile, const Piece& piece, int first) {
    const Sizes& sizes = tile.sizes;
    const E4m3Numbers<Codes> numbers{};
    const std::byte* pages[PIECE_PAGES];
    for (int i = 0; i < piece.num_pages; ++i) {
      pages[i] = piece.k[i];
      if (tile.pool.numbers == KvNumbers::bf16) continue;
      fetch_head(tile.pool, piece.soon[i]);
      pages[i] = converted_k(numbers, sizes, piece.k[i], page_in(tile, tile.room.k, i));
    }
    finish_stores();
    for (int row = block_of(first); row < tile.num_rows(); row += AMX_ROWS)
      score_block(tile, pages, piece, row);
  }

  static void mix(const Tile& tile, const Piece& piece, int first, const Sums& sums) {
    for (int i = 0; i < piece.num_pages; ++i) {
      const std::byte* soon = piece.soon[i] + (piece.v[i] - piece.k[i]);
      take_v(tile, piece.v[i], soon, page_in(tile, tile.room.v, i));
    }
    const int last = tile.num_rows() - 1, least = tile.room.seen[block_of(first)];
    hide(tile, tile.room.seen[last]);
    if (least == tile.room.seen[last] || is_finite(tile, least)) {
      for (int row = block_of(first); row <= last; row += AMX_ROWS) mix_block(tile, row, sums);
    } else {  // what one row sees must not reach another, since 0 times NaN is NaN
      for (int row = last; row >= first; --row) mix_row(tile, row, sums);
    }
  }

 private:
  static int height(const Tile& tile) {  // of its blocks of rows; the last one may be padded
    return tile.num_rows() < AMX_ROWS ? tile.num_rows() : AMX_ROWS;
  }

  static int block_of(int row) { return row / AMX_ROWS * AMX_ROWS; }

  static int last_of(const Tile& tile, int block) {
    const int end = block + AMX_ROWS;
    return (end < tile.num_rows() ? end : tile.num_rows()) - 1;
  }

  static int units_of(int tokens) { return tokens > 0 ? (tokens + UNIT - 1) / UNIT : 0; }

  static void score_block(const Tile& tile, const std::byte* const* pages, const Piece& piece,
                          int block) {
    const Sizes& sizes = tile.sizes;
    const ptrdiff_t line = ptrdiff_t{4} * sizes.page_size, stride = ptrdiff_t{4} * sizes.stride;
    const Factors factors{reinterpret_cast<const std::byte*>(queries(tile, block)),
                          ptrdiff_t{2} * sizes.head_dim, sizes.head_dim / UNIT, AMX_ROWS * line,
                          line};
    float* scores = tile.room.scores + block * sizes.stride;
    const bool fetches = tile.num_rows() <= MANY_ROWS && tile.pool.numbers == KvNumbers::bf16;
    Spot k[TOGETHER];
    int count = 0;
    for (int token = 0; token < tile.room.seen[last_of(tile, block)]; token += CHUNK) {
      const int page = token / sizes.page_size, at = token % sizes.page_size * 4;
      k[count++] = {pages[page] + at, fetches ? piece.soon[page] + at : nullptr};
      if (count < TOGETHER) continue;
      set_products<TOGETHER>(factors, k, scores, stride);
      scores += TOGETHER * CHUNK, count = 0;
    }
    if (count == 1) set_products<1>(factors, k, scores, stride);
    if (count == 2) set_products<2>(factors, k, scores, stride);
    if (count == 3) set_products<3>(factors, k, scores, stride);
  }

  static uint16_t* weights(const Tile& tile, int row) {
    return reinterpret_cast<uint16_t*>(tile.room.scores + row * tile.sizes.stride);
  }

  // V of a page, as bfloat16 that lies with the other pages'.
  static void take_v(const Tile& tile, const std::byte* page, const std::byte* soon,
                     std::byte* to) {
    if (tile.pool.numbers == KvNumbers::fp8_e4m3) {
      fetch_head(tile.pool, soon);
      converted_v(E4m3Numbers<Codes>{}, tile.sizes, page, to);
      return;
    }
    const size_t bytes = tile.pool.head_bytes();
    for (size_t at = 0; at < bytes; at += 2 * LINE) {  // head_dim is a multiple of 32
      fetch(soon + at), fetch(soon + at + LINE);
      const __m512i first = _mm512_loadu_si512(page + at);
      const __m512i second = _mm512_loadu_si512(page + at + LINE);
      _mm512_storeu_si512(to + at, first);
      _mm512_storeu_si512(to + at + LINE, second);
    }
  }

  static std::byte* pair_at(const Tile& tile, int pair) {  // of tokens of the piece's V
    return reinterpret_cast<std::byte*>(tile.room.v) + ptrdiff_t{4} * pair * tile.sizes.head_dim;
  }

  // Clears what the last unit of `seen` tokens of V holds beyond them.
  static void hide(const Tile& tile, int seen) {
    const ptrdiff_t bytes = ptrdiff_t{4} * tile.sizes.head_dim;
    int pair = seen / 2;
    if (seen % 2 != 0) {
      std::byte* at = pair_at(tile, pair++);
      for (ptrdiff_t i = 0; i < bytes; i += LINE)
        _mm512_storeu_si512(at + i, _mm512_and_si512(_mm512_loadu_si512(at + i),
                                                     _mm512_set1_epi32(0xffff)));
    }
    std::byte* from = pair_at(tile, pair);
    std::memset(from, 0, pair_at(tile, units_of(seen) * UNIT / 2) - from);
  }

  // Whether V is finite in the units that not all rows see whole.
  static bool is_finite(const Tile& tile, int least) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    const int units = units_of(tile.room.seen[tile.num_rows() - 1]);
    const std::byte* at = pair_at(tile, least > 0 ? least / UNIT * UNIT / 2 : 0);
    const std::byte* end = pair_at(tile, units * UNIT / 2);
    __mmask32 odd = 0;
    for (; at < end; at += LINE)
      odd |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_loadu_si512(at), exponent), exponent);
    return odd == 0;
  }

  static void mix_block(const Tile& tile, int block, const Sums& sums) {
    const int last = last_of(tile, block), units = units_of(tile.room.seen[last]);
    for (int row = block; row < last; ++row) {
      const int own = units_of(tile.room.seen[row]);
      std::memset(weights(tile, row) + own * UNIT, 0, size_t(units - own) * UNIT * 2);
    }
    add_units(tile, block, units, sums.mixed + ptrdiff_t{block} * tile.sizes.head_dim);
  }

  // Of a block, one row; no row after it is to follow.
  static void mix_row(const Tile& tile, int row, const Sums& sums) {
    const int seen = tile.room.seen[row], block = block_of(row), head_dim = tile.sizes.head_dim;
    float* mixed = sums.mixed + ptrdiff_t{row} * head_dim;
    float* among_others = tile.room.k + ptrdiff_t{row - block} * head_dim;
    hide(tile, seen);
    std::memcpy(among_others, mixed, sizeof(float) * head_dim);
    add_units(tile, block, units_of(seen), tile.room.k);
    std::memcpy(mixed, among_others, sizeof(float) * head_dim);
  }

  // Adds so many units of V, weighed, to the sums of a block [rows, head_dim].
  static void add_units(const Tile& tile, int block, int units, float* sums) {
    const Sizes& sizes = tile.sizes;
    const ptrdiff_t line = ptrdiff_t{4} * sizes.head_dim;
    const Factors factors{reinterpret_cast<const std::byte*>(weights(tile, block)),
                          ptrdiff_t{4} * sizes.stride, units, UNIT / 2 * line, line};
    finish_stores();
    int dim = 0;
    for (; dim + TOGETHER * CHUNK <= sizes.head_dim; dim += TOGETHER * CHUNK)
      add_to_sums<TOGETHER>(factors, pair_at(tile, 0) + dim * 4, sums + dim, line);
    if (dim < sizes.head_dim)
      add_to_sums<2>(factors, pair_at(tile, 0) + dim * 4, sums + dim, line);
  }
};

void attend_with_tiles(const KvPool& pool, int layer, int kv_head, const AttentionRow& row,
                       int first, int last, const float* q, int num_heads, ptrdiff_t ld, float* out,
                       ptrdiff_t out_ld, std::byte* scratch) {
  const bool amx = suits(pool);
  const auto attend_one = amx ? attend<AmxKernel> : ATTENTION_AVX512VBMI.attend;
  attend_one(pool, layer, kv_head, row, first, last, q, num_heads, ld, out, out_ld, scratch);
  if (amx) release_tiles();
}

void attend_segment_with_tiles(const KvPool& pool, int layer, int kv_head, const AttentionRow& row,
                               int query, int segment, const float* q, int num_heads,
                               float* partial, std::byte* scratch) {
  const bool amx = suits(pool);
  const auto attend_one = amx ? attend_segment<AmxKernel> : ATTENTION_AVX512VBMI.attend_segment;
  attend_one(pool, layer, kv_head, row, query, segment, q, num_heads, partial, scratch);
  if (amx) release_tiles();
}

}  // namespace

extern const AttentionKernels ATTENTION_AMX;
const AttentionKernels ATTENTION_AMX = {store, attend_with_tiles, attend_segment_with_tiles,
                                        merge<AmxKernel>, read_head};

}  // namespace bulkhead
#endif
