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

}  // namespace
}  // namespace bulkhead
