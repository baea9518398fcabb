#ifdef BULKHEAD_X86
#include <immintrin.h>

#include <cstring>

#include "linear_avx512.h"
#include "linear_kinds.h"
#include "linear_tiles.h"

namespace bulkhead {
namespace {

// 32 bits of x, for each of 16 rows of W.
__m512i broadcast(const void* from) {
  int32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return _mm512_set1_epi32(bits);
}

// Asks for lines of the blocks after a tile's own; into the second cache, for the first is full of
// what the tile itself needs. Always inlined: GCC takes a call for nothing that only prefetches.
template <int BLOCKS>
[[gnu::always_inline]] inline void ask_ahead(const Spot& spot, size_t from, int lines) {
  if (!spot.asks_ahead) return;
  for (int b = BLOCKS; b < 2 * BLOCKS; ++b)
    for (int line = 0; line < lines; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(spot.data(b) + from + line * LINE), _MM_HINT_T1);
}

// What a tile will store has left the caches by now where x has many rows.
template <int ROWS, int BLOCKS>
[[gnu::always_inline]] inline void ask_for_outputs(const Spot& spot) {
  for (int b = 0; b < BLOCKS; ++b)
    for (int r = 0; r < ROWS; ++r)
      _mm_prefetch(reinterpret_cast<const char*>(spot.out_at(r, b)), _MM_HINT_T0);
}

template <int ROWS, int BLOCKS>
void set_zero(__m512 (&sums)[ROWS][BLOCKS]) {
  for (auto& row : sums)
    for (auto& sum : row) sum = _mm512_setzero_ps();
}

template <int ROWS, int BLOCKS>
void store(const Spot& spot, const __m512 (&sums)[ROWS][BLOCKS]) {
  for (int b = 0; b < BLOCKS; ++b) {
    const auto columns = static_cast<__mmask16>((1u << spot.columns(b)) - 1);
    for (int r = 0; r < ROWS; ++r) {
      float* to = spot.out_at(r, b);
      __m512 sum = sums[r][b];
      if (spot.add) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(columns, to), sum);
      _mm512_mask_storeu_ps(to, columns, sum);
    }
  }
}

template <class W>
struct Int8Tile {
  static constexpr int MAX_ROWS = 8, BLOCKS = 2;
  static constexpr int LINES = lines_of_group(W::WEIGHTS);

  template <int ROWS, int COUNT>
  static void run(const Spot& spot) {
    const Inputs& x = spot.x;
    const int groups = x.k / INPUT_GROUP;
    const int8_t* values = x.int8 + size_t(spot.row) * x.k;
    const float* scales = x.scales + size_t(spot.row) * groups;
    const int32_t* x_sums = x.sums + size_t(spot.row) * groups;
    __m512 sums[ROWS][COUNT];
    set_zero(sums);
    ask_for_outputs<ROWS, COUNT>(spot);

    for (int group = 0; group < groups; ++group) {
      __m512i exact[ROWS][COUNT];
      for (int r = 0; r < ROWS; ++r)
        for (int b = 0; b < COUNT; ++b)
          exact[r][b] = _mm512_set1_epi32(-W::OFFSET * x_sums[r * groups + group]);
      ask_ahead<COUNT>(spot, lines_at(W::WEIGHTS, group), LINES);
      const int8_t* x_group = values + group * INPUT_GROUP;
#pragma GCC unroll 16
      for (int unit = 0; unit < LINES / W::TOGETHER; ++unit) {
        __m512i w[COUNT][W::REGISTERS];
        for (int b = 0; b < COUNT; ++b)
          W::unpack(spot.data(b) + lines_at(W::WEIGHTS, group) + unit * W::TOGETHER * LINE, w[b]);
        for (int part = 0; part < W::REGISTERS; ++part)
          for (int r = 0; r < ROWS; ++r) {
            const __m512i four = broadcast(x_group + r * x.k + (unit * W::REGISTERS + part) * 4);
            for (int b = 0; b < COUNT; ++b)
              exact[r][b] = _mm512_dpbusd_epi32(exact[r][b], w[b][part], four);
          }
      }
      for (int b = 0; b < COUNT; ++b) {
        const __m512 w_scales = scales_of(spot.data(b) + scales_at(W::WEIGHTS, group));
        for (int r = 0; r < ROWS; ++r) {
          const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(scales[r * groups + group]), w_scales);
          sums[r][b] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact[r][b]), scale, sums[r][b]);
        }
      }
    }
    store(spot, sums);
  }
};

struct Bf16Tile {
  static constexpr int MAX_ROWS = 8, BLOCKS = 2;

  template <int ROWS, int COUNT>
  static void run(const Spot& spot) {
    const Inputs& x = spot.x;
    const uint16_t* values = x.bf16 + size_t(spot.row) * x.k;
    __m512 sums[ROWS][COUNT];
    set_zero(sums);
    ask_for_outputs<ROWS, COUNT>(spot);

    for (int pair = 0; pair < x.k / 2; ++pair) {
      __m512bh w[COUNT];
      for (int b = 0; b < COUNT; ++b) w[b] = (__m512bh)load(spot.data(b) + size_t(pair) * LINE);
      ask_ahead<COUNT>(spot, size_t(pair) * LINE, 1);
      for (int r = 0; r < ROWS; ++r) {
        const __m512bh two = (__m512bh)broadcast(values + size_t(r) * x.k + pair * 2);
        for (int b = 0; b < COUNT; ++b) sums[r][b] = _mm512_dpbf16_ps(sums[r][b], w[b], two);
      }
    }
    store(spot, sums);
  }
};

// Nibbles become bf16 by a table. A lookup takes the lowest five bits of a 16-bit word: a nibble
// and one bit of the next, for which the table has each value twice.
struct Int4Bf16Tile {
  static constexpr int MAX_ROWS = 8, BLOCKS = 2;
  static constexpr int LINES = lines_of_group(Weights::int4);

  static __m512i table() {
    alignas(64) static constexpr uint16_t VALUES[32] = {
        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,  // -8 to -1
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,  // 0 to 7
        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
    };
    return load(VALUES);
  }

  // Of each row the k 0 and 1, 2 and 3, 4 and 5, 6 and 7 of a line.
  static void unpack(const std::byte* line, __m512bh (&out)[4]) {
    const __m512i by_nibble = table(), bytes = load(line);
    const __m512i bytes_0_1 = _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(_mm_setr_epi8(
        0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13)));
    const __m512i bytes_2_3 = _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(_mm_setr_epi8(
        2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15)));
    out[0] = (__m512bh)_mm512_permutexvar_epi16(bytes_0_1, by_nibble);
    out[1] = (__m512bh)_mm512_permutexvar_epi16(bytes_2_3, by_nibble);
    out[2] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi32(bytes_0_1, 4), by_nibble);
    out[3] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi32(bytes_2_3, 4), by_nibble);
  }

  template <int ROWS, int COUNT>
  static void run(const Spot& spot) {
    const Inputs& x = spot.x;
    const uint16_t* values = x.bf16 + size_t(spot.row) * x.k;
    __m512 sums[ROWS][COUNT];
    set_zero(sums);
    ask_for_outputs<ROWS, COUNT>(spot);
    for (int group = 0; group < x.k / INPUT_GROUP; ++group) {
      __m512 of_group[ROWS][COUNT];
      set_zero(of_group);
      ask_ahead<COUNT>(spot, lines_at(Weights::int4, group), LINES);
      for (int line = 0; line < LINES; ++line) {
        __m512bh w[COUNT][4];
        for (int b = 0; b < COUNT; ++b)
          unpack(spot.data(b) + lines_at(Weights::int4, group) + line * LINE, w[b]);
        const uint16_t* eight = values + group * INPUT_GROUP + line * 8;
        for (int pair = 0; pair < 4; ++pair)
          for (int r = 0; r < ROWS; ++r) {
            const __m512bh two = (__m512bh)broadcast(eight + size_t(r) * x.k + pair * 2);
            for (int b = 0; b < COUNT; ++b)
              of_group[r][b] = _mm512_dpbf16_ps(of_group[r][b], w[b][pair], two);
          }
      }
      for (int b = 0; b < COUNT; ++b) {
        const __m512 w_scales = scales_of(spot.data(b) + scales_at(Weights::int4, group));
        for (int r = 0; r < ROWS; ++r)
          sums[r][b] = _mm512_fmadd_ps(of_group[r][b], w_scales, sums[r][b]);
      }
    }
    store(spot, sums);
  }
};

}  // namespace

const LinearKernels LINEAR_AVX512 = {
    run_product<Bf16Tile>,
    run_product<Int4Bf16Tile>,
    run_product<Int8Tile<Int4>>,
    run_product<Int8Tile<Int8>>,
    run_product<Int8Tile<Int6>>,
};

}  // namespace bulkhead
#endif
