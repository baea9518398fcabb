// e4m3 codes become bfloat16 numbers by tables of 128 bytes: for CPUs with AVX-512's VBMI.
#pragma once

#include "attention_bf16.h"
#include "e4m3.h"

namespace bulkhead {
namespace {

constexpr auto bytes_of_sizes(int shift) {
  std::array<uint8_t, 128> bytes{};
  for (int code = 0; code < 128; ++code) {
    const uint32_t bits = std::bit_cast<uint32_t>(e4m3_value(code));  // exact in the upper half
    bytes[code] = static_cast<uint8_t>(bits >> shift);
  }
  return bytes;
}

constexpr auto LOW = bytes_of_sizes(16), HIGH = bytes_of_sizes(24);

struct Codes {
  __m512i low[2]{_mm512_loadu_si512(LOW.data()), _mm512_loadu_si512(LOW.data() + 64)};
  __m512i high[2]{_mm512_loadu_si512(HIGH.data()), _mm512_loadu_si512(HIGH.data() + 64)};
  __m512i sign = _mm512_set1_epi8(-128);

  // Of each 16 codes the first 8, and the last 8.
  [[gnu::always_inline]] Two unpacked(__m512i codes) const {
    const __m512i lower = lower_bytes(codes), upper = upper_bytes(codes);
    return {_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)};
  }

  [[gnu::always_inline]] Two even_and_odd(__m512i codes) const {
    const __m512i lower = lower_bytes(codes), upper = upper_bytes(codes);
    const __m512i low_halves = _mm512_set1_epi16(0xff);
    return {_mm512_ternarylogic_epi32(lower, low_halves, _mm512_slli_epi16(upper, 8), A_IN_B_OR_C),
            _mm512_ternarylogic_epi32(upper, low_halves, _mm512_srli_epi16(lower, 8),
                                      A_OUT_OF_B_OR_C)};
  }

 private:
  static constexpr int A_IN_B_OR_C = 0xea, A_OUT_OF_B_OR_C = 0xba;

  __m512i lower_bytes(__m512i codes) const {
    return _mm512_permutex2var_epi8(low[0], codes, low[1]);
  }

  __m512i upper_bytes(__m512i codes) const {
    const __m512i size = _mm512_permutex2var_epi8(high[0], codes, high[1]);
    return _mm512_ternarylogic_epi32(codes, sign, size, A_IN_B_OR_C);
  }
};

}  // namespace
}  // namespace bulkhead
