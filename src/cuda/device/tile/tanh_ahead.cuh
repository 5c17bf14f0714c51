#pragma once
// The tanh of a score that is capped, for several pairs side by side. The softmax leaves the special-function unit little time, and it would take two of its
// operations; where the arguments of all pairs of a warp are small, as they are in most tiles, it is a polynomial on the FMA pipes instead.
#include "score/score.cuh"
#include "score/small_tanh.cuh"

namespace foveal::device {

/// May the tanh of raw * factor be that of small arguments for all pairs of the warp? NaN does not count: either way it stays NaN.
template <int count>
FOVEAL_DEVICE bool all_small(const float (&raw)[count], float factor) {
  float largest[4] = {};  // comparisons that need not wait for each other
#pragma unroll
  for (int i = 0; i < count; ++i) largest[i % 4] = fmaxf(largest[i % 4], fabsf(raw[i]));
  const float limit = kSmallTanh * reciprocal_approx(fabsf(factor));
  const float all = fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
  return __all_sync(~0u, limit >= kLowestSmallTanh && all <= fminf(limit, kHighestSmallTanh));
}

template <bool small>
struct TanhAhead {
  static constexpr int kAtOnce = 4;  // as many as a multiplication takes cycles
  float factor, times;
  float coefficients[kTanhTerms];

  FOVEAL_DEVICE TanhAhead(float factor, float times) : factor(factor), times(times) {
    float power = factor * times;
#pragma unroll
    for (int i = 0; i < kTanhTerms; ++i, power *= factor * factor) coefficients[i] = kTanhCoefficients[i] * power;
  }

  /// Of registers first, first + 1, ...
  template <int count>
  FOVEAL_DEVICE void evaluate(float (&tanh)[kAtOnce], const float (&raw)[count], int first) const {
    if constexpr (small) {
      float square[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) square[j] = raw[first + j] * raw[first + j];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) tanh[j] = coefficients[kTanhTerms - 1];
#pragma unroll
      for (int term = kTanhTerms - 2; term >= 0; --term) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) tanh[j] = fmaf(tanh[j], square[j], coefficients[term]);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) tanh[j] *= raw[first + j];
    } else {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) tanh[j] = fv_tanh(raw[first + j], factor, times);
    }
  }
};

}  // namespace foveal::device
