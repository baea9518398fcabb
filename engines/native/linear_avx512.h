// Lines of W in registers of AVX-512: what its own products and AMX's share.
//
// All is in an unnamed namespace: what is compiled for one CPU must never be linked where another
// will call it.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "linear_layout.h"

namespace bulkhead {
namespace {

inline __m512i load(const void* from) { return _mm512_load_si512(from); }

inline __m512 scales_of(const std::byte* from) {
  const __m256i halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// How a line of W, or some together, become registers of 16 x 4 unsigned bytes.
struct Int8 {
  static constexpr Weights WEIGHTS = Weights::int8;
  static constexpr int OFFSET = INT8_OFFSET, TOGETHER = 1, REGISTERS = 1;
  static void unpack(const std::byte* line, __m512i (&out)[1]) { out[0] = load(line); }
};

struct Int4 {
  static constexpr Weights WEIGHTS = Weights::int4;
  static constexpr int OFFSET = INT4_OFFSET, TOGETHER = 1, REGISTERS = 2;
  static void unpack(const std::byte* line, __m512i (&out)[2]) {
    const __m512i low = _mm512_set1_epi8(15), pairs = load(line);
    out[0] = _mm512_and_si512(pairs, low);
    out[1] = _mm512_and_si512(_mm512_srli_epi32(pairs, 4), low);
  }
};

struct Int6 {
  static constexpr Weights WEIGHTS = Weights::int6;
  static constexpr int OFFSET = INT6_OFFSET, TOGETHER = 3, REGISTERS = 4;
  static void unpack(const std::byte* line, __m512i (&out)[4]) {
    const __m512i a = load(line), b = load(line + LINE), c = load(line + 2 * LINE);
    const __m512i low = _mm512_set1_epi8(63);
    out[0] = _mm512_and_si512(a, low);
    out[1] = _mm512_and_si512(b, low);
    out[2] = _mm512_and_si512(c, low);
    const __m512i bits_0_1 = _mm512_and_si512(_mm512_srli_epi32(a, 6), _mm512_set1_epi8(3));
    const __m512i bits_2_3 = _mm512_and_si512(_mm512_srli_epi32(b, 4), _mm512_set1_epi8(12));
    const __m512i bits_4_5 = _mm512_and_si512(_mm512_srli_epi32(c, 2), _mm512_set1_epi8(48));
    out[3] = _mm512_or_si512(_mm512_or_si512(bits_0_1, bits_2_3), bits_4_5);
  }
};

}  // namespace
}  // namespace bulkhead
