// Attention with AVX-512's bf16 products: queries, weights, K and V are bfloat16, sums float32.
//
// A product takes two neighbouring dims of K, or tokens of V, at a time. e4m3 codes become bfloat16
// numbers exactly, by the table of `Codes`: on their way to the product if few queries want them,
// and in `Room` first if many do. Either way the same numbers are added in the same order.
// These products take numbers under 2^-126 for zero; e4m3 has none so small.
#pragma once

#include "attention_steps.h"
#include "attention_tiles.h"

namespace bulkhead {
namespace {

constexpr int CHUNK = 16;     // tokens of K, or dims of V, in a register
constexpr int MANY_ROWS = 8;  // for which codes are converted first

// Two registers of pairs: of K the two pairs of dims of 4 e4m3 codes; of V two chunks of dims.
struct Two {
  __m512i first, second;
};

// Reads K and V as they lie in bf16 pages.
struct Bf16Numbers {
  static constexpr int BYTES = 2;

  // Dims 4 * quad .. 4 * quad + 3 of the chunk's tokens; `page` is at its first.
  Two k(const std::byte* page, int quad, int page_size, __mmask16 tokens) const {
    const std::byte* line = page + static_cast<ptrdiff_t>(quad) * 2 * page_size * 4;
    return {_mm512_maskz_loadu_epi32(tokens, line),
            _mm512_maskz_loadu_epi32(tokens, line + page_size * 4)};
  }

  // Of two tokens, 32 dims; `pairs` is at the first.
  Two v(const std::byte* pairs) const {
    return {_mm512_loadu_si512(pairs), _mm512_loadu_si512(pairs + 64)};
  }

  __m512i v_half(const std::byte* pairs) const { return _mm512_loadu_si512(pairs); }  // 16 dims
};

// Reads e4m3 pages. The dims of v() come as unpacking leaves them: see `in_order`.
template <class Codes>
struct E4m3Numbers {
  static constexpr int BYTES = 1;
  Codes codes;

  Two k(const std::byte* page, int quad, int page_size, __mmask16 tokens) const {
    const std::byte* line = page + static_cast<ptrdiff_t>(quad) * page_size * 4;
    return codes.even_and_odd(_mm512_maskz_loadu_epi32(tokens, line));
  }

  Two v(const std::byte* pairs) const { return codes.unpacked(_mm512_loadu_si512(pairs)); }

  __m512i v_half(const std::byte* pairs) const {
    const __m512i spread = _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0);
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    return codes.unpacked(_mm512_permutexvar_epi64(spread, _mm512_castsi256_si512(half))).first;
  }
};

[[gnu::always_inline]] inline __m512 product(__m512 sum, const uint16_t* pair, __m512i numbers) {
  int32_t both;
  std::memcpy(&both, pair, sizeof both);
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(both)),
                          reinterpret_cast<__m512bh>(numbers));
}

// Scores of one chunk of tokens, for some rows. `soon` is as far into another page as `page` is.
template <int ROWS, class Numbers>
[[gnu::always_inline]] inline void score_chunk(const Numbers& numbers, const Sizes& sizes,
                                               const uint16_t* q, const std::byte* page,
                                               const std::byte* soon, __mmask16 tokens,
                                               float* scores) {
  __m512 even[ROWS], odd[ROWS];
  for (int row = 0; row < ROWS; ++row) even[row] = odd[row] = _mm512_setzero_ps();
  for (int quad = 0; quad < sizes.head_dim / 4; ++quad) {
    const Two k = numbers.k(page, quad, sizes.page_size, tokens);
    const uint16_t* pair = q + quad * 4;
    for (int line = 0; line < Numbers::BYTES; ++line)
      fetch(soon + static_cast<ptrdiff_t>(quad * Numbers::BYTES + line) * sizes.page_size * 4);
    for (int row = 0; row < ROWS; ++row, pair += sizes.head_dim) {
      even[row] = product(even[row], pair, k.first);
      odd[row] = product(odd[row], pair + 2, k.second);
    }
  }
  for (int row = 0; row < ROWS; ++row)
    _mm512_mask_storeu_ps(scores + row * sizes.stride, tokens, even[row] + odd[row]);
}

template <int ROWS, class Numbers>
void score_rows(const Numbers& numbers, const Sizes& sizes, const uint16_t* q,
                const std::byte* const* pages, const std::byte* const* soon, int num_tokens,
                float* scores) {
  for (int start = 0; start < num_tokens; start += sizes.page_size, ++pages, ++soon) {
    for (int token = 0; token < sizes.page_size; token += CHUNK) {
      const int left = sizes.page_size - token;
      const __mmask16 tokens = left < CHUNK ? (1 << left) - 1 : 0xffff;
      score_chunk<ROWS>(numbers, sizes, q, *pages + token * 4, *soon + token * 4, tokens,
                        scores + start + token);
    }
  }
}

// Some rows' sums over V, for CHUNKS chunks of dims.
template <int ROWS, int CHUNKS>
struct Mixture {
  __m512 sums[ROWS][CHUNKS];

  void load(const float* mixed, int head_dim) {
    for (int row = 0; row < ROWS; ++row)
      for (int i = 0; i < CHUNKS; ++i)
        sums[row][i] = _mm512_loadu_ps(mixed + row * head_dim + i * CHUNK);
  }

  void store(float* mixed, int head_dim) const {
    for (int row = 0; row < ROWS; ++row)
      for (int i = 0; i < CHUNKS; ++i)
        _mm512_storeu_ps(mixed + row * head_dim + i * CHUNK, sums[row][i]);
  }

  // Adds two tokens (those in `seen`), whose weights each row holds at `pair`.
  template <class Numbers>
  [[gnu::always_inline]] void add(const Numbers& numbers, const std::byte* pairs,
                                  const std::byte* soon, const uint16_t* pair, int stride,
                                  __m512i seen) {
    for (int line = 0; line < CHUNKS * Numbers::BYTES / 2; ++line) fetch(soon + line * 64);
    __m512i values[CHUNKS];
    if constexpr (CHUNKS == 1) {
      values[0] = _mm512_and_si512(numbers.v_half(pairs), seen);
    } else {
      for (int i = 0; i < CHUNKS; i += 2) {
        const Two two = numbers.v(pairs + static_cast<ptrdiff_t>(i) * CHUNK * 2 * Numbers::BYTES);
        values[i] = _mm512_and_si512(two.first, seen);
        values[i + 1] = _mm512_and_si512(two.second, seen);
      }
    }
    for (int row = 0; row < ROWS; ++row)
      for (int i = 0; i < CHUNKS; ++i)
        sums[row][i] = product(sums[row][i], pair + row * stride, values[i]);
  }
};

// Where the pairs of tokens of a piece lie.
struct Pairs {
  const std::byte* const* pages;
  const std::byte* const* soon;  // pages to be read after these
  int in_page;    // pairs
  size_t bytes;   // from one pair to the next

  const std::byte* at(int pair) const {
    return pages[pair / in_page] + static_cast<size_t>(pair % in_page) * bytes;
  }

  const std::byte* soon_at(int pair) const {
    return soon[pair / in_page] + static_cast<size_t>(pair % in_page) * bytes;
  }
};

// Adds tokens first..last-1, weighed, to the rows of `mixed`; `first` is even.
template <int ROWS, int CHUNKS, class Numbers>
void mix_chunks(const Numbers& numbers, const Sizes& sizes, const uint16_t* weights,
                const Pairs& pairs, int dim, int first, int last, float* mixed) {
  const int stride = sizes.stride * 2;
  const size_t offset = static_cast<size_t>(dim) * 2 * Numbers::BYTES;
  Mixture<ROWS, CHUNKS> mixture;
  mixture.load(mixed + dim, sizes.head_dim);
  for (int pair = first / 2; pair < last / 2;) {
    const int in_page = pairs.in_page - pair % pairs.in_page, left = last / 2 - pair;
    const std::byte* at = pairs.at(pair) + offset;
    const std::byte* soon = pairs.soon_at(pair) + offset;
    for (int end = pair + (left < in_page ? left : in_page); pair < end;
         ++pair, at += pairs.bytes, soon += pairs.bytes)
      mixture.add(numbers, at, soon, weights + pair * 2, stride, _mm512_set1_epi32(-1));
  }
  if (last % 2 != 0)  // what lies beside the last token is none of theirs
    mixture.add(numbers, pairs.at(last / 2) + offset, pairs.soon_at(last / 2) + offset,
                weights + last - 1, stride, _mm512_set1_epi32(0xffff));
  mixture.store(mixed + dim, sizes.head_dim);
}

template <int ROWS, class Numbers>
void mix_rows(const Numbers& numbers, const Sizes& sizes, const uint16_t* weights,
              const Pairs& pairs, int first, int last, float* mixed) {
  int dim = 0;
  for (; dim + 4 * CHUNK <= sizes.head_dim; dim += 4 * CHUNK)
    mix_chunks<ROWS, 4>(numbers, sizes, weights, pairs, dim, first, last, mixed);
  for (; dim + 2 * CHUNK <= sizes.head_dim; dim += 2 * CHUNK)
    mix_chunks<ROWS, 2>(numbers, sizes, weights, pairs, dim, first, last, mixed);
  if (dim < sizes.head_dim)
    mix_chunks<ROWS, 1>(numbers, sizes, weights, pairs, dim, first, last, mixed);
}

}  // namespace
}  // namespace bulkhead
