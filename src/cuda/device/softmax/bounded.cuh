#pragma once
// A step of the softmax for exponents that are known to be small: it needs no maximum. bf16 has the exponents of fp32, so probabilities may be far from 1.
#include "softmax/online.cuh"

namespace foveal::device {

/// Sums of 2^24 such probabilities leave the values 2^63.
constexpr float kHighestExponent = 40.0f;

/// What is subtracted from exponents of at most kHighestExponent, which are scores * scale_log2: a row's reference, no less than 0.
FOVEAL_DEVICE void bounded_shift(const OnlineSoftmax& softmax, float scale_log2, float (&shift)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) shift[r] = fmaxf(softmax.reference[r], 0.0f) * scale_log2;
}

/// exponents - shift -> probabilities, in place of OnlineSoftmax::follow_maximum, with its result, and add. `partial`: -inf where the pair is not kept; a row that keeps nothing stays as it is.
template <bool partial, int count>
FOVEAL_DEVICE bool update_bounded(OnlineSoftmax& softmax, float (&exponents)[count], float scale_log2, float (&rescale)[2]) {
  float sum[2] = {};
#pragma unroll
  for (int i = 0; i < count; ++i) {
    exponents[i] = exp2_real(exponents[i]);
    sum[fragment_row(i)] += exponents[i];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float old = softmax.reference[r];
    if (!partial || quad_sum(sum[r]) != 0.0f) softmax.reference[r] = fmaxf(old, 0.0f);
    rescale[r] = old == softmax.reference[r] ? 1.0f : exp2_real((old - softmax.reference[r]) * scale_log2);
    softmax.sum[r] = fmaf(softmax.sum[r], rescale[r], sum[r]);
  }
  return __any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f);
}

}  // namespace foveal::device
