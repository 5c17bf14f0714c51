#pragma once
// Softmax step for exponents known to be small, which needs no maximum. bf16 has the exponent range of fp32, so probabilities may be far
// from 1.
#include "softmax/online.cuh"
#include "tile/tanh_ahead.cuh"

namespace foveal::device {

/// 2^24 such probabilities, summed and multiplied with values, stay finite.
constexpr float kHighestExponent = 40.0f;

/// What is subtracted from exponents (scores * scale_log2, at most kHighestExponent): the row's reference, but at least 0.
FOVEAL_DEVICE void bounded_shift(const OnlineSoftmax& softmax, float scale_log2, float (&shift)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) shift[r] = fmaxf(softmax.reference[r], 0.0f) * scale_log2;
}

/// exponents - shift -> probabilities; replaces OnlineSoftmax::update_max (same return value) and add. partial: dropped pairs are -inf; a
/// row without kept pairs is unchanged.
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

/// Largest sum of guessed probabilities (score/small_tanh.cuh) for which the guess holds, with exponents up to `gain` and |raw| up to
/// `limit`; 0: no guessing.
template <int terms>
FOVEAL_DEVICE float highest_guessed_sum(const TanhPolynomial<terms>& exponents, float gain, float limit) {
  const bool possible = limit >= kLowestSmallTanh && fabsf(gain) >= SmallTanh<terms>::kLeastGain;
  return possible ? exp2_real(fabsf(exponents.at(fminf(limit, kHighestSmallTanh)))) : 0.0f;
}

/// scores -> packed probabilities, for rows whose reference is 0. Returns whether the guess holds for all rows of the warp; if not, only
/// `packed` was written.
template <class Element, int terms, int count>
FOVEAL_DEVICE bool guess_probabilities(u32 (&packed)[count / 2], OnlineSoftmax& softmax, const float (&scores)[count],
                                       const TanhPolynomial<terms>& exponents, float highest_sum) {
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < count; i += kTanhAtOnce) {
    float p[kTanhAtOnce];
    exponents.evaluate(p, scores, i);
#pragma unroll
    for (int j = 0; j < kTanhAtOnce; ++j) {
      p[j] = exp2_real(p[j]);
      sums[(i + j) % 4] += p[j];
    }
#pragma unroll
    for (int j = 0; j < kTanhAtOnce; j += 2) packed[(i + j) / 2] = pack(Element{}, p[j], p[j + 1]);
  }
  const float sum[2] = {sums[0] + sums[1], sums[2] + sums[3]};
  constexpr int kOfRow = count / 2;
  const bool right = fminf(sum[0], sum[1]) >= kLeastMean * kOfRow && fmaxf(sum[0], sum[1]) <= highest_sum;
  if (!__all_sync(~0u, right)) return false;
  softmax.sum[0] += sum[0];
  softmax.sum[1] += sum[1];
  return true;
}

}  // namespace foveal::device
