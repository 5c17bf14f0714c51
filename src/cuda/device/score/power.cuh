#pragma once
// x^y for scores of 16-bit problems, without the branches of the CUDA library's, which, inlined
// for each pair of a thread, took 33 s to compile.
//
// |x| = 2^e (1 + t) with 1 + t next to 1, and |x|^y = 2^(y e + y log2(1 + t)). The logarithm is t times a minimax polynomial, so that it
// keeps its digits near 1, where x is the base of a decay and y a distance. Relative error 2^-22 + |y log2(1 + t)| 2^-24.
#include "score/approximations.cuh"

namespace foveal::device {

/// log2(1 + t) for 1 + t in [sqrt(1/2), sqrt(2)).
FOVEAL_DEVICE float log2_near_one(float t) {
  constexpr float kCoefficients[] = {0.12310968339443207f, -0.2058618813753128f, 0.21607822179794312f,
                                     -0.2391698807477951f, 0.2879032492637634f,  -0.3606932759284973f,
                                     0.4809107482433319f,  -0.721347451210022f,  1.4426950216293335f};
  float value = kCoefficients[0];
#pragma unroll
  for (int i = 1; i < 9; ++i) value = fmaf(value, t, kCoefficients[i]);
  return t * value;
}

FOVEAL_DEVICE float power(float x, float y) {
  const float size = fabsf(x);
  const bool subnormal = size < 0x1p-126f;
  const int bits = __float_as_int(subnormal ? size * 0x1p24f : size);
  const int e = (bits - __float_as_int(0.70710677f)) >> 23;
  const float t = __int_as_float(bits - (e << 23)) - 1;
  const float octaves = static_cast<float>(subnormal ? e - 24 : e);
  const float log2 = size > 0 && size < infinity() ? log2_near_one(t) : log2_approx(size);
  const float exponent = fmaf(y, octaves, y * log2), whole = rintf(exponent);
  float value = fabsf(exponent) < 256 ? exp2_real(fmaf(y, log2, fmaf(y, octaves, -whole))) * exp2_real(whole) : exp2_real(exponent);
  if (x < 0) {
    const bool odd = rintf(0.5f * y) != 0.5f * y;
    value = rintf(y) != y ? __int_as_float(0x7fc00000) : odd ? -value : value;
  }
  return y == 0 || x == 1 || (x == -1 && fabsf(y) == infinity()) ? 1.0f : value;  // whatever the other one is
}

}  // namespace foveal::device
