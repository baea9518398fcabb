// The AVX-512 kernels where only 64 numbers fit a table.
#include "attention_bf16_kernel.h"

namespace bulkhead {
namespace {

constexpr auto NUMBERS = [] {  // bfloat16, of codes without a sign
  std::array<uint16_t, 128> numbers{};
  for (int code = 0; code < 128; ++code)
    numbers[code] = static_cast<uint16_t>(std::bit_cast<uint32_t>(e4m3_value(code)) >> 16);
  return numbers;
}();

struct Codes {
  __m512i table[4]{part(0), part(1), part(2), part(3)};

  // Of each 16 codes the first 8, and the last 8.
  [[gnu::always_inline]] Two unpacked(__m512i codes) const {
    const __m512i none = _mm512_setzero_si512();
    return {numbers_of(_mm512_unpacklo_epi8(codes, none)),
            numbers_of(_mm512_unpackhi_epi8(codes, none))};
  }

  [[gnu::always_inline]] Two even_and_odd(__m512i codes) const {
    return {numbers_of(_mm512_and_si512(codes, _mm512_set1_epi16(0xff))),
            numbers_of(_mm512_srli_epi16(codes, 8))};
  }

 private:
  static __m512i part(int i) { return _mm512_loadu_si512(NUMBERS.data() + 32 * i); }

  [[gnu::always_inline]] __m512i numbers_of(__m512i codes) const {
    const __mmask32 large = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(64));
    const __m512i small = _mm512_permutex2var_epi16(table[0], codes, table[1]);
    const __m512i size =
        _mm512_mask_blend_epi16(large, small, _mm512_permutex2var_epi16(table[2], codes, table[3]));
    const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(codes, 8), _mm512_set1_epi16(-32768));
    return _mm512_or_si512(size, sign);
  }
};

}  // namespace

extern const AttentionKernels ATTENTION_AVX512;
const AttentionKernels ATTENTION_AVX512 = kernels_of<Bf16Kernel<Codes>>();

}  // namespace bulkhead
