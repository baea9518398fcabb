// FP8 e4m3: sign, 4 bits of exponent (bias 7), 3 of fraction. No infinities; 0x7f and 0xff are NaN.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace bulkhead {
namespace {

constexpr float e4m3_value(int code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 127) == 127) return __builtin_nanf("");
  float size = exponent == 0 ? fraction / 512.f : (8 + fraction) / 8.f;
  for (int e = exponent; e > 7; --e) size *= 2;
  for (int e = exponent; e > 0 && e < 7; ++e) size /= 2;
  return code & 128 ? -size : size;
}

constexpr auto E4M3_VALUES = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) values[code] = e4m3_value(code);
  return values;
}();

// To nearest, ties to even; saturates at 448.
inline uint8_t to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), size = bits & 0x7fffffff;
  const uint32_t sign = bits >> 24 & 0x80;
  if (size > 0x7f800000) return sign | 0x7f;
  // Under 2^-6 codes count 512ths: 2^23 added makes the float's own rounding cut there.
  if (size < 0x3c800000)
    return sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(size) * 512 + 0x1p23f) & 0xff);
  const uint32_t code = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - 960;
  return sign | (code < 0x7e ? code : 0x7e);
}

}  // namespace
}  // namespace bulkhead
