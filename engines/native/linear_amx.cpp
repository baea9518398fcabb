// Products of integers on a CPU with AMX: 16 rows of x times 16 of W, 64 k of each, in one
// instruction.
//
// W is unpacked to signed bytes once for all rows. Sums of integers are exact, and what follows is
// float32 in the order of the AVX-512 products: a row's result is the same bits from either. They
// serve few rows, where AMX gains nothing, and bfloat16, whose sums AMX rounds in its own order.
#ifdef BULKHEAD_AMX
#include <new>
#include <utility>

#include "linear_avx512.h"
#include "linear_kinds.h"
#include "linear_tiles.h"
#include "tiles_amx.h"

namespace bulkhead {
namespace {

constexpr int FEWEST_ROWS = 20;  // from here on the unpacking pays
constexpr size_t TILE_BYTES = AMX_ROWS * LINE;

// The next block of W is asked for while one is unpacked.
[[gnu::always_inline]] inline void ask(const std::byte* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
}

// A group's lines become a tile of signed bytes.
template <class W>
void unpack_group(const std::byte* lines, size_t ahead, std::byte* out) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(W::OFFSET));
  for (int unit = 0; unit < lines_of_group(W::WEIGHTS) / W::TOGETHER; ++unit) {
    const std::byte* from = lines + unit * W::TOGETHER * LINE;
    for (int line = 0; line < W::TOGETHER; ++line) ask(from + line * LINE + ahead);
    __m512i parts[W::REGISTERS];
    W::unpack(from, parts);
    for (__m512i part : parts) {
      _mm512_store_si512(out, _mm512_sub_epi8(part, offset));
      out += LINE;
    }
  }
}

// One product of bit matrices moves a nibble down, takes 8 off it and spreads its sign: of its bits
// the lowest three stay, and the other five are the fourth's opposite.
template <>
void unpack_group<Int4>(const std::byte* lines, size_t ahead, std::byte* out) {
  const __m512i low = _mm512_set1_epi64(0x0102040808080808);
  const __m512i high = _mm512_set1_epi64(0x1020408080808080);
  for (int line = 0; line < lines_of_group(Weights::int4); ++line) {
    ask(lines + line * LINE + ahead);
    const __m512i pairs = load(lines + line * LINE);
    _mm512_store_si512(out, _mm512_gf2p8affine_epi64_epi8(pairs, low, 0xf8));
    _mm512_store_si512(out + LINE, _mm512_gf2p8affine_epi64_epi8(pairs, high, 0xf8));
    out += 2 * LINE;
  }
}

template <class W>
void unpack_block(const Spot& spot, std::byte* out) {
  for (int group = 0; group < spot.x.k / INPUT_GROUP; ++group)
    unpack_group<W>(spot.data(0) + lines_at(W::WEIGHTS, group), spot.bytes_of_block,
                    out + group * TILE_BYTES);
  asm volatile("" ::: "memory");  // all of it is stored before a tile is loaded
}

// The exact sums of a group. Two SETs of tiles take turns, so that one needn't wait for the other.
template <int SET>
[[gnu::always_inline]] inline void multiply(const int8_t* x, int k, const std::byte* w,
                                            int32_t* exact) {
  zero_tile<SET>();
  load_tile<2 + SET>(x, k);
  load_tile<4 + SET>(w, LINE);
  multiply_tiles<SET, 2 + SET, 4 + SET>();
  store_tile<SET>(exact, LINE);
}

// A group's exact sums, scaled, onto those before it. Unrolled: else sums aren't in registers.
template <int ROWS>
[[gnu::always_inline]] inline void add_group(const int32_t* exact, const float* scales,
                                             __m512 w_scales, __m512 (&sums)[ROWS]) {
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
    const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(scales[r]), w_scales);
    sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(load(exact + r * BLOCK)), scale, sums[r]);
  }
}

template <int ROWS>
[[gnu::always_inline]] inline void store(const Spot& spot, __m512 (&sums)[ROWS]) {
  const auto columns = static_cast<__mmask16>((1u << spot.columns(0)) - 1);
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
    float* to = spot.out_at(r, 0);
    if (spot.add) sums[r] = _mm512_add_ps(_mm512_maskz_loadu_ps(columns, to), sums[r]);
    _mm512_mask_storeu_ps(to, columns, sums[r]);
  }
}

// One tile of rows, with their scales by group, and one block of W, unpacked. While AMX works on a
// group, the one before it is scaled and added.
template <class W, int ROWS>
void run_one(const Spot& spot, const std::byte* w, const float* scales) {
  const int groups = spot.x.k / INPUT_GROUP, k = spot.x.k;
  const int8_t* x = spot.x.int8 + size_t(spot.row) * k;
  const std::byte* block = spot.data(0);
  alignas(LINE) int32_t even[ROWS * BLOCK], odd[ROWS * BLOCK];
  __m512 sums[ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) sums[r] = _mm512_setzero_ps();
  const auto w_scales = [&](int group) { return scales_of(block + scales_at(W::WEIGHTS, group)); };

  multiply<0>(x, k, w, even);
  int group = 1;
  for (; group + 1 < groups; group += 2) {
    multiply<1>(x + group * INPUT_GROUP, k, w + group * TILE_BYTES, odd);
    add_group<ROWS>(even, scales, w_scales(group - 1), sums);
    multiply<0>(x + (group + 1) * INPUT_GROUP, k, w + (group + 1) * TILE_BYTES, even);
    add_group<ROWS>(odd, scales + AMX_ROWS, w_scales(group), sums);
    scales += 2 * AMX_ROWS;
  }
  if (group < groups) multiply<1>(x + group * INPUT_GROUP, k, w + group * TILE_BYTES, odd);
  add_group<ROWS>(even, scales, w_scales(group - 1), sums);
  if (group < groups) add_group<ROWS>(odd, scales + AMX_ROWS, w_scales(group), sums);
  store(spot, sums);
}

template <class W, int... BEFORE>
void run_one(int rows, const Spot& spot, const std::byte* w, const float* scales,
             std::integer_sequence<int, BEFORE...>) {
  ((rows == BEFORE + 1 ? run_one<W, BEFORE + 1>(spot, w, scales) : void()), ...);
}

// Rows in tiles of nearly equal height.
struct Cut {
  int rows, num_tiles = (rows + AMX_ROWS - 1) / AMX_ROWS;

  int first(int tile) const { return static_cast<int>(int64_t{rows} * tile / num_tiles); }
  int height(int tile) const { return first(tile + 1) - first(tile); }
};

// The scales of x [tiles, groups, AMX_ROWS], so that those of a group are in one line.
void turn_scales(const Inputs& x, const Cut& cut, float* out) {
  const int groups = x.k / INPUT_GROUP;
  for (int tile = 0; tile < cut.num_tiles; ++tile, out += groups * AMX_ROWS)
    for (int row = 0; row < cut.height(tile); ++row)
      for (int group = 0; group < groups; ++group)
        out[group * AMX_ROWS + row] = x.scales[size_t(cut.first(tile) + row) * groups + group];
}

// What a thread works in; it grows and stays. Not `Buffer`, which others compile without AVX-512.
class Room {
 public:
  Room() = default;
  Room(const Room&) = delete;
  ~Room() { ::operator delete(data_, ALIGNMENT); }

  void* reserve(size_t bytes) {
    if (bytes > size_) {
      ::operator delete(data_, ALIGNMENT);
      data_ = nullptr, size_ = 0;
      data_ = ::operator new(bytes, ALIGNMENT);
      size_ = bytes;
    }
    return data_;
  }

 private:
  static constexpr std::align_val_t ALIGNMENT{LINE};
  void* data_ = nullptr;
  size_t size_ = 0;
};

// All rows with one block of W.
template <class W>
void run_block(Spot spot, const Cut& cut, std::byte* unpacked, const float* scales) {
  unpack_block<W>(spot, unpacked);
  int rows = 0;
  for (int tile = 0; tile < cut.num_tiles; ++tile, scales += spot.x.k / INPUT_GROUP * AMX_ROWS) {
    spot.row = cut.first(tile);
    if (cut.height(tile) != rows) configure_tiles(rows = cut.height(tile), 4);
    run_one<W>(cut.height(tile), spot, unpacked, scales,
               std::make_integer_sequence<int, AMX_ROWS>{});
  }
}

template <Product LinearKernels::*KIND>
void without_amx(const Matrix& w, int first, int last, const Inputs& x, float* out, ptrdiff_t ld,
                 bool add) {
  (LINEAR_AVX512.*KIND)(w, first, last, x, out, ld, add);
}

template <class W, Product LinearKernels::*KIND>
void product(const Matrix& w, int first, int last, const Inputs& x, float* out, ptrdiff_t ld,
             bool add) {
  if (x.num_rows < FEWEST_ROWS) return without_amx<KIND>(w, first, last, x, out, ld, add);
  const Cut cut{x.num_rows};
  const size_t num_scales = size_t(cut.num_tiles) * AMX_ROWS * (x.k / INPUT_GROUP);
  thread_local Room room;
  auto* unpacked = static_cast<std::byte*>(room.reserve(size_t{BLOCK} * x.k + 4 * num_scales));
  auto* scales = reinterpret_cast<float*>(unpacked + size_t{BLOCK} * x.k);
  turn_scales(x, cut, scales);
  Spot spot{w, x, block_bytes(w.weights, w.k, w.group), first, 0, out, ld, add, false};
  for (; spot.block < last; ++spot.block) run_block<W>(spot, cut, unpacked, scales);
  release_tiles();
}

}  // namespace

const LinearKernels LINEAR_AMX = {
    without_amx<&LinearKernels::bf16_bf16>,
    without_amx<&LinearKernels::int4_bf16>,
    product<Int4, &LinearKernels::int4_int8>,
    product<Int8, &LinearKernels::int8_int8>,
    product<Int6, &LinearKernels::int6_int8>,
};

}  // namespace bulkhead
#endif
