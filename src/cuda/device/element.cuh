#pragma once
// Element types: storage, conversions, and the type of accumulators. 16-bit types are raw bits.
#include "base.cuh"

namespace foveal::device {

struct alignas(2) f16 {
  u16 bits;
};
struct alignas(2) bf16 {
  u16 bits;
};

FOVEAL_DEVICE float to_real(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
FOVEAL_DEVICE float to_real(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
FOVEAL_DEVICE float to_real(float x) { return x; }
FOVEAL_DEVICE double to_real(double x) { return x; }

FOVEAL_DEVICE void from_real(bf16& y, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
FOVEAL_DEVICE void from_real(f16& y, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
FOVEAL_DEVICE void from_real(float& y, float x) { y = x; }
FOVEAL_DEVICE void from_real(float& y, double x) { y = float(x); }
FOVEAL_DEVICE void from_real(double& y, double x) { y = x; }
FOVEAL_DEVICE void from_real(bf16& y, double x) { from_real(y, float(x)); }
FOVEAL_DEVICE void from_real(f16& y, double x) { from_real(y, float(x)); }

/// Two values packed into one register, the first in the low half.
FOVEAL_DEVICE u32 pack(bf16, float low, float high) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
FOVEAL_DEVICE u32 pack(f16, float low, float high) {
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

/// Real: type of scores, statistics and accumulators.
template <class T>
struct ElementFacts {
  using Real = float;
};
template <>
struct ElementFacts<double> {
  using Real = double;
};

FOVEAL_DEVICE float exp2_real(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FOVEAL_DEVICE double exp2_real(double x) { return exp2(x); }
FOVEAL_DEVICE float log_real(float x) { return logf(x); }
FOVEAL_DEVICE double log_real(double x) { return log(x); }
FOVEAL_DEVICE float exp_real(float x) { return expf(x); }
FOVEAL_DEVICE double exp_real(double x) { return exp(x); }
FOVEAL_DEVICE float max_real(float a, float b) { return fmaxf(a, b); }
FOVEAL_DEVICE double max_real(double a, double b) { return fmax(a, b); }
FOVEAL_DEVICE float fma_real(float a, float b, float c) { return fmaf(a, b, c); }
FOVEAL_DEVICE double fma_real(double a, double b, double c) { return fma(a, b, c); }

}  // namespace foveal::device
