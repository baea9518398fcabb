#ifdef BULKHEAD_X86
#include <immintrin.h>

#include <cstring>

#include "linear_kinds.h"
#include "linear_layout.h"
#include "linear_tiles.h"

namespace bulkhead {
namespace {

constexpr int HALVES = 2;  // of a line: 8 rows of W each, a register

__m256i load(const std::byte* line, int half) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(line) + half);
}

// 32 bits of x, for each of 8 rows of W.
__m256i broadcast(const void* from) {
  int32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return _mm256_set1_epi32(bits);
}

// bf16 in the lower or in the upper half of each 32 bits.
__m256 lower(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
__m256 upper(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(~0xffff)));
}

__m256 floats_of(const void* eight_bf16) {
  return lower(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(eight_bf16))));
}

template <int ROWS>
void set_zero(__m256 (&sums)[ROWS][HALVES]) {
  for (auto& row : sums)
    for (auto& sum : row) sum = _mm256_setzero_ps();
}

template <int ROWS>
void store(const Spot& spot, const __m256 (&sums)[ROWS][HALVES]) {
  const __m256i eight = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int half = 0; half < HALVES; ++half) {
    const int left = spot.columns(0) - half * 8;
    const __m256i columns = _mm256_cmpgt_epi32(_mm256_set1_epi32(left), eight);
    for (int r = 0; r < ROWS && left > 0; ++r) {
      float* to = spot.out_at(r, 0) + half * 8;
      __m256 sum = sums[r][half];
      if (spot.add) sum = _mm256_add_ps(_mm256_maskload_ps(to, columns), sum);
      _mm256_maskstore_ps(to, columns, sum);
    }
  }
}

__m256i in_32_bits(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }

// How the bytes of half a line, or of some together, are multiplied with x: 8 sums of 4, 8 or 16
// products. AVX2 multiplies unsigned by signed, and adds two products in 16 bits.
struct Int8 {
  static constexpr Weights WEIGHTS = Weights::int8;
  static constexpr int OFFSET = 0, TOGETHER = 1, REGISTERS = 1;
  static void unpack(const std::byte* line, int half, __m256i (&out)[1]) {
    const __m256i offset = _mm256_set1_epi8(static_cast<char>(INT8_OFFSET));
    out[0] = _mm256_xor_si256(load(line, half), offset);
  }
  // 255 * 127 twice would not fit in 16 bits, so the sign is moved to x.
  static __m256i products(const __m256i (&w)[1], const int8_t* x) {
    return in_32_bits(
        _mm256_maddubs_epi16(_mm256_abs_epi8(w[0]), _mm256_sign_epi8(broadcast(x), w[0])));
  }
};

struct Int6 {
  static constexpr Weights WEIGHTS = Weights::int6;
  static constexpr int OFFSET = INT6_OFFSET, TOGETHER = 3, REGISTERS = 4;
  static void unpack(const std::byte* line, int half, __m256i (&out)[4]) {
    const __m256i a = load(line, half), b = load(line + LINE, half);
    const __m256i c = load(line + 2 * LINE, half), low = _mm256_set1_epi8(63);
    out[0] = _mm256_and_si256(a, low);
    out[1] = _mm256_and_si256(b, low);
    out[2] = _mm256_and_si256(c, low);
    const __m256i bits_0_1 = _mm256_and_si256(_mm256_srli_epi32(a, 6), _mm256_set1_epi8(3));
    const __m256i bits_2_3 = _mm256_and_si256(_mm256_srli_epi32(b, 4), _mm256_set1_epi8(12));
    const __m256i bits_4_5 = _mm256_and_si256(_mm256_srli_epi32(c, 2), _mm256_set1_epi8(48));
    out[3] = _mm256_or_si256(_mm256_or_si256(bits_0_1, bits_2_3), bits_4_5);
  }
  // 63 * 127 fits four times, hardly.
  static __m256i products(const __m256i (&w)[4], const int8_t* x) {
    __m256i pairs[4];
    for (int i = 0; i < 4; ++i) pairs[i] = _mm256_maddubs_epi16(w[i], broadcast(x + 4 * i));
    return _mm256_add_epi32(in_32_bits(_mm256_add_epi16(pairs[0], pairs[1])),
                            in_32_bits(_mm256_add_epi16(pairs[2], pairs[3])));
  }
};

struct Int4 {
  static constexpr Weights WEIGHTS = Weights::int4;
  static constexpr int OFFSET = INT4_OFFSET, TOGETHER = 1, REGISTERS = 2;
  static void unpack(const std::byte* line, int half, __m256i (&out)[2]) {
    const __m256i low = _mm256_set1_epi8(15), bytes = load(line, half);
    out[0] = _mm256_and_si256(bytes, low);
    out[1] = _mm256_and_si256(_mm256_srli_epi32(bytes, 4), low);
  }
  static __m256i products(const __m256i (&w)[2], const int8_t* x) {
    return in_32_bits(_mm256_add_epi16(_mm256_maddubs_epi16(w[0], broadcast(x)),
                                       _mm256_maddubs_epi16(w[1], broadcast(x + 4))));
  }
};

template <class W>
struct Int8Tile {
  static constexpr int MAX_ROWS = 4, BLOCKS = 1;
  static constexpr int LINES = lines_of_group(W::WEIGHTS);

  template <int ROWS, int>
  static void run(const Spot& spot) {
    const Inputs& x = spot.x;
    const int groups = x.k / INPUT_GROUP;
    const int8_t* values = x.int8 + size_t(spot.row) * x.k;
    const size_t first_group = size_t(spot.row) * groups;
    __m256 sums[ROWS][HALVES];
    set_zero(sums);
    for (int group = 0; group < groups; ++group) {
      __m256i exact[ROWS][HALVES];
      for (int r = 0; r < ROWS; ++r)
        for (int half = 0; half < HALVES; ++half)
          exact[r][half] =
              _mm256_set1_epi32(-W::OFFSET * x.sums[first_group + r * groups + group]);
      for (int unit = 0; unit < LINES / W::TOGETHER; ++unit)
        add_lines(spot.data(0) + lines_at(W::WEIGHTS, group) + unit * W::TOGETHER * LINE,
                  values + group * INPUT_GROUP + unit * W::REGISTERS * 4, x.k, exact);
      for (int half = 0; half < HALVES; ++half) {
        const __m256 w_scales = floats_of(spot.data(0) + scales_at(W::WEIGHTS, group) + half * 16);
        for (int r = 0; r < ROWS; ++r) {
          const float x_scale = x.scales[first_group + r * groups + group];
          const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(x_scale), w_scales);
          sums[r][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact[r][half]), scale, sums[r][half]);
        }
      }
    }
    store(spot, sums);
  }

  template <int ROWS>
  static void add_lines(const std::byte* first, const int8_t* x, size_t stride,
                        __m256i (&exact)[ROWS][HALVES]) {
    for (int half = 0; half < HALVES; ++half) {
      __m256i w[W::REGISTERS];
      W::unpack(first, half, w);
      for (int r = 0; r < ROWS; ++r)
        exact[r][half] = _mm256_add_epi32(exact[r][half], W::products(w, x + r * stride));
    }
  }
};

struct Bf16Tile {
  static constexpr int MAX_ROWS = 4, BLOCKS = 1;

  template <int ROWS, int>
  static void run(const Spot& spot) {
    const Inputs& x = spot.x;
    const uint16_t* values = x.bf16 + size_t(spot.row) * x.k;
    __m256 sums[ROWS][HALVES];
    set_zero(sums);
    for (int pair = 0; pair < x.k / 2; ++pair) {
      const std::byte* line = spot.data(0) + size_t(pair) * LINE;
      const __m256i w[HALVES] = {load(line, 0), load(line, 1)};
      for (int r = 0; r < ROWS; ++r) {
        const __m256i two = broadcast(values + size_t(r) * x.k + pair * 2);
        for (int half = 0; half < HALVES; ++half) {
          sums[r][half] = _mm256_fmadd_ps(lower(w[half]), lower(two), sums[r][half]);
          sums[r][half] = _mm256_fmadd_ps(upper(w[half]), upper(two), sums[r][half]);
        }
      }
    }
    store(spot, sums);
  }
};

struct Int4Bf16Tile {
  static constexpr int MAX_ROWS = 4, BLOCKS = 1;
  static constexpr int LINES = lines_of_group(Weights::int4);

  template <int ROWS, int>
  static void run(const Spot& spot) {
    const Inputs& x = spot.x;
    const uint16_t* values = x.bf16 + size_t(spot.row) * x.k;
    alignas(32) float x_group[ROWS][INPUT_GROUP];
    __m256 sums[ROWS][HALVES];
    set_zero(sums);
    for (int group = 0; group < x.k / INPUT_GROUP; ++group) {
      for (int r = 0; r < ROWS; ++r)
        for (int at = 0; at < INPUT_GROUP; at += 8)
          _mm256_store_ps(x_group[r] + at,
                          floats_of(values + size_t(r) * x.k + group * INPUT_GROUP + at));
      __m256 of_group[ROWS][HALVES];
      set_zero(of_group);
      for (int line = 0; line < LINES; ++line)
        add_line(spot.data(0) + lines_at(Weights::int4, group) + line * LINE, x_group, line * 8,
                 of_group);
      for (int half = 0; half < HALVES; ++half) {
        const std::byte* scales = spot.data(0) + scales_at(Weights::int4, group);
        const __m256 w_scales = floats_of(scales + half * 16);
        for (int r = 0; r < ROWS; ++r)
          sums[r][half] = _mm256_fmadd_ps(of_group[r][half], w_scales, sums[r][half]);
      }
    }
    store(spot, sums);
  }

  // Eight k, in their order.
  template <int ROWS>
  static void add_line(const std::byte* line, const float (&x)[ROWS][INPUT_GROUP], int first,
                       __m256 (&sums)[ROWS][HALVES]) {
    const __m256i bytes[HALVES] = {load(line, 0), load(line, 1)};
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      const int shift = k < 4 ? k * 8 : (k - 4) * 8 + 4;
      __m256 w[HALVES];
      for (int half = 0; half < HALVES; ++half) {
        const __m256i nibbles = _mm256_and_si256(_mm256_srli_epi32(bytes[half], shift),
                                                 _mm256_set1_epi32(15));
        w[half] = _mm256_cvtepi32_ps(_mm256_sub_epi32(nibbles, _mm256_set1_epi32(INT4_OFFSET)));
      }
      for (int r = 0; r < ROWS; ++r) {
        const __m256 value = _mm256_broadcast_ss(&x[r][first + k]);
        for (int half = 0; half < HALVES; ++half)
          sums[r][half] = _mm256_fmadd_ps(w[half], value, sums[r][half]);
      }
    }
  }
};

}  // namespace

const LinearKernels LINEAR_AVX2 = {
    run_product<Bf16Tile>,
    run_product<Int4Bf16Tile>,
    run_product<Int8Tile<Int4>>,
    run_product<Int8Tile<Int8>>,
    run_product<Int8Tile<Int6>>,
};

}  // namespace bulkhead
#endif
