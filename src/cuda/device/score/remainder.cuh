#pragma once
// Remainders and floor divisions of reals: exact, without the branches of the CUDA library's fmodf, which, inlined for each pair of a
// thread, took minutes to compile. A fused multiply-add subtracts a multiple of the divisor. That is exact where the factor has at most 20
// bits and is next to the quotient: the result is then below the divisor, and a multiple of the last place of one of both. Larger
// quotients, which are rare, take 20 bits at a time in a loop.
#include "score/approximations.cuh"

namespace foveal::device {

struct NearestMultiple {
  float quotient;  ///< next to a / |b|, an integer
  float rest;      ///< a less that multiple of |b|; within 0.7 |b|
};

/// Takes a multiple of `unit` from the rest; returns its factor.
FOVEAL_DEVICE float take_nearest(float& rest, float unit) {
  const float factor = rintf(rest * reciprocal_approx(unit));
  rest = fmaf(-factor, unit, rest);
  return factor;
}

/// The rest is NaN where b is 0, infinite or NaN, or the quotient exceeds 2^128.
FOVEAL_DEVICE NearestMultiple nearest_multiple(float a, float b) {
  constexpr float kMost = 0x1p20f;
  const float size = fabsf(b);
  const bool large = size > 0x1p100f, small = size < 0x1p-60f;  // scaled: their reciprocals would be subnormal or infinite
  const float scale = large ? 0x1p-60f : small ? 0x1p60f : 1.0f;
  const float unit = size * scale;
  NearestMultiple found{0, a * scale};
#pragma unroll 1
  while (unit > 0 && fabsf(found.rest) >= unit * kMost) {
    const int octaves = ((__float_as_int(found.rest) & 0x7fffffff) - __float_as_int(unit * kMost) >> 23) + 1;
    const float larger = __int_as_float(__float_as_int(unit) + (octaves << 23));
    found.quotient += take_nearest(found.rest, larger) * __int_as_float((127 + octaves) << 23);
  }
  found.quotient += take_nearest(found.rest, unit);
  found.rest *= large ? 0x1p60f : small ? 0x1p-60f : 1.0f;
  return found;
}

/// a - b * floor(a / b): of the divisor's sign.
FOVEAL_DEVICE float remainder_of(float a, float b) {
  const float rest = fabsf(a) < fabsf(b) ? a : nearest_multiple(a, b).rest;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/// floor(a / b)
FOVEAL_DEVICE float floor_of_quotient(float a, float b) {
  const NearestMultiple nearest = fabsf(a) < fabsf(b) ? NearestMultiple{0, a} : nearest_multiple(a, b);
  const float quotient = b < 0 ? -nearest.quotient : nearest.quotient;
  const bool above = nearest.rest != 0 && (nearest.rest < 0) != (b < 0);
  return b == 0 ? a * reciprocal_approx(b) : quotient + 0 * nearest.rest - (above ? 1.0f : 0.0f);  // NaN where the rest is
}

}  // namespace foveal::device
