// A few float32 lanes, as many as the file that includes this is compiled for: 4, 8 or 16.
//
// All is in an unnamed namespace: what is compiled for one CPU must never be linked where another
// will call it.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace bulkhead {
namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));

// a * b + c; rounded once where the CPU can, and twice where it can't.
[[gnu::always_inline]] inline Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

[[gnu::always_inline]] inline Floats all(float value) { return Floats{} + value; }

[[gnu::always_inline]] inline Floats load(const float* from) {
  Floats lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

[[gnu::always_inline]] inline void store(float* to, Floats lanes) {
  std::memcpy(to, &lanes, sizeof lanes);
}

// The first `n` lanes; the others are zero.
[[gnu::always_inline]] inline Floats load(const float* from, int n) {
  if (n == LANES) return load(from);
  Floats lanes{};
  std::memcpy(&lanes, from, n * sizeof(float));
  return lanes;
}

[[gnu::always_inline]] inline void store(float* to, Floats lanes, int n) {
  if (n == LANES) return store(to, lanes);
  std::memcpy(to, &lanes, n * sizeof(float));
}

// Calls body(i, n) for lanes i..i+n-1 of `count`: n is LANES but for the last.
template <class Body>
[[gnu::always_inline]] inline void for_lanes(int count, Body&& body) {
  int i = 0;
  for (; i + LANES <= count; i += LANES) body(i, LANES);
  if (i < count) body(i, count - i);
}

inline float total(const Floats& lanes) {
  float sums[LANES];
  std::memcpy(sums, &lanes, sizeof sums);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  return sums[0];
}

inline float highest(const Floats& lanes) {  // NaN may be passed over
  float values[LANES];
  std::memcpy(values, &lanes, sizeof values);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i)
      values[i] = values[i] < values[i + width] ? values[i + width] : values[i];
  return values[0];
}

inline int32_t total(const Ints& lanes) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(lanes));
#else
  int32_t sum = 0;
  for (int i = 0; i < LANES; ++i) sum += lanes[i];
  return sum;
#endif
}

inline uint32_t highest(const Words& lanes) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epu32(reinterpret_cast<__m512i>(lanes));
#else
  uint32_t found = 0;
  for (int i = 0; i < LANES; ++i) found = lanes[i] > found ? lanes[i] : found;
  return found;
#endif
}

// bfloat16, by its bits: to nearest, ties to even. NaN stays NaN.
[[gnu::always_inline]] inline Words bf16_of(Floats values) {
  const Words bits = __builtin_bit_cast(Words, values);
  const Words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const Words quiet = bits >> 16 | 0x40;  // rounding could make infinity of a NaN
  return (bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded;
}

// To the nearest whole number, ties to even, for sizes up to 2^22.
[[gnu::always_inline]] inline Floats nearest(Floats x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// p * 2^n, for whole n from -150 to 128.
[[gnu::always_inline]] inline Floats times_2_to(Floats n, Floats p) {
#if defined(__AVX512F__)
  return _mm512_maskz_scalef_ps(0xffff, p, n);
#else
  // In two factors, since neither end is a float's exponent.
  const Ints whole = __builtin_convertvector(n, Ints), half = whole >> 1;
  const Ints first = (half + 127) << 23, second = (whole - half + 127) << 23;
  return p * __builtin_bit_cast(Floats, first) * __builtin_bit_cast(Floats, second);
#endif
}

// e^x within 2 ulp; 0 under -104, infinite over 88.8, NaN of NaN. exp(0) is 1 exactly.
[[gnu::always_inline]] inline Floats exp(Floats x) {
  x = x < -104.f ? all(-104.f) : x;
  x = x > 89.f ? all(89.f) : x;
  const Floats n = nearest(x * 1.44269504f);
  Floats r = fused(n, all(-0.693359375f), x);  // ln 2 in two parts: n times the first is exact
  r = fused(n, all(2.12194440e-4f), r);
  Floats p = all(1.9875691500e-4f);  // Cephes' polynomial
  p = fused(p, r, all(1.3981999507e-3f));
  p = fused(p, r, all(8.3334519073e-3f));
  p = fused(p, r, all(4.1665795894e-2f));
  p = fused(p, r, all(1.6666665459e-1f));
  p = fused(p, r, all(5.0000001201e-1f));
  p = fused(p * r, r, r) + 1.f;
  return times_2_to(n, p);
}

// 2^x within 2 ulp for x up to 127; 0 under -150, NaN of NaN. exp2(0) is 1 exactly.
[[gnu::always_inline]] inline Floats exp2(Floats x) {
  x = x < -150.f ? all(-150.f) : x;
#if defined(__AVX512F__)
  const Floats n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const Floats n = nearest(x);
#endif
  const Floats r = x - n;
  Floats p = all(1.326472731e-3f);  // the least relative error from -1/2 to 1/2
  p = fused(p, r, all(9.671512991e-3f));
  p = fused(p, r, all(5.550733581e-2f));
  p = fused(p, r, all(2.402224243e-1f));
  p = fused(p, r, all(6.931470037e-1f));
  return times_2_to(n, fused(p, r, all(1.f)));
}

inline float exp2(float x) { return exp2(all(x))[0]; }

}  // namespace
}  // namespace bulkhead
