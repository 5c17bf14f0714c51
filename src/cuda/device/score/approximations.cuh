#pragma once
// The special-function unit: one instruction each, relative errors near 2^-22 (of a logarithm near 1 absolute ones).
#include "element.cuh"

namespace foveal::device {

FOVEAL_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FOVEAL_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FOVEAL_DEVICE float sqrt_approx(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace foveal::device
