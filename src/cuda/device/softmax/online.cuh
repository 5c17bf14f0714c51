#pragma once
// Online softmax: running maximum and sum of a row, in base 2.
#include "layout/agreed.cuh"
#include "score/functions.cuh"
#include "tile/fragment.cuh"

namespace foveal::device {

/// The reference is replaced only by a maximum that exceeds it by more than this many powers of two: probabilities stay below 2^8, which
/// every 16-bit type represents, and most tiles need no rescaling.
constexpr float kRescaleThreshold = 8.0f;

/// With the exponent range of bf16 the maximum of a row's first tile can serve the later ones, unless it is below 2^kLowestHeldMax: the
/// first tile may hold only soft-masked scores, such as -10000. A sum above kGrowingSum means that scores grow, and the maximum is updated;
/// one above kOverflowingSum that this came too late.
constexpr float kLowestHeldMax = -16.0f, kGrowingSum = 0x1p20f, kOverflowingSum = 0x1p63f;

struct OnlineSoftmax {
  float reference[2];  ///< per row, in units of the scores: a running maximum, not always the current one; -inf: no key kept so far
  float sum[2];        ///< of this thread's columns only

  FOVEAL_DEVICE void reset() {
    reference[0] = reference[1] = -infinity();
    sum[0] = sum[1] = 0;
  }

  /// Are all references of the warp 0?
  FOVEAL_DEVICE bool is_unshifted() const { return __all_sync(~0u, reference[0] == 0 && reference[1] == 0); }

  /// Can the current references be kept for the next tile, in all rows of the warp? One vote, so that the result is warp-uniform and no
  /// divergence code is emitted.
  /// may_grow: scores are more than scaled products, so the sums are checked too.
  template <bool may_grow>
  FOVEAL_DEVICE bool max_holds(float scale_log2, bool may_hold) const {
    const bool grows = may_grow && !(fmaxf(sum[0], sum[1]) < kGrowingSum);
    return __all_sync(~0u, may_hold && fminf(reference[0], reference[1]) * scale_log2 >= kLowestHeldMax &&
                               fmaxf(reference[0], reference[1]) * scale_log2 < kFarReference && !grows);
  }

  /// Updates the references for the scores of another tile and rescales the sums. Returns whether the output must be multiplied by
  /// `rescale`.
  template <int count>
  FOVEAL_DEVICE bool update_max(const float (&scores)[count], float scale_log2, float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float local = fmaxf(scores[2 * r], scores[2 * r + 1]);
#pragma unroll
      for (int i = 4; i < count; ++i) {
        if (fragment_row(i) == r) local = fmaxf(local, scores[i]);
      }
      const float highest = fmaxf(reference[r], quad_max(local));
      const float old = reference[r];
      if (!((highest - old) * scale_log2 <= kRescaleThreshold)) reference[r] = highest;
      rescale[r] = old == reference[r] ? 1.0f : exp2_real((old - reference[r]) * scale_log2);
      sum[r] *= rescale[r];
    }
    return __any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f);
  }

  /// scores -> exp2((score - reference) * scale_log2). may_be_far: references that were kept are not far.
  template <int count>
  FOVEAL_DEVICE void add(float (&scores)[count], float scale_log2, bool may_be_far) {
    float shift[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) shift[r] = reference[r] == -infinity() ? 0.0f : reference[r] * scale_log2;
    if (may_be_far && __any_sync(~0u, fmaxf(fabsf(shift[0]), fabsf(shift[1])) >= kFarReference)) {
#pragma unroll
      for (int i = 0; i < count; ++i) scores[i] -= reference[fragment_row(i)] == -infinity() ? 0.0f : reference[fragment_row(i)];
      shift[0] = shift[1] = 0;
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      scores[i] = exp2_real(fmaf(scores[i], scale_log2, -shift[fragment_row(i)]));
      sum[fragment_row(i)] += scores[i];
    }
  }

  /// Did a score exceed a kept reference by too much, in this thread's columns? NaN counts.
  FOVEAL_DEVICE bool overflows() const { return !(sum[0] < kOverflowingSum && sum[1] < kOverflowingSum); }

  /// Makes an overflow sticky: rescaling might hide it, but the output accumulated with it may be infinite.
  FOVEAL_DEVICE void keep_overflow() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!(sum[r] < kOverflowingSum)) sum[r] *= infinity();
    }
  }

  /// Forces what add() computes to be computed here: a store that never happens keeps ptxas from sinking the exponentials below the next
  /// wgmma wait, where nothing hides them.
  FOVEAL_DEVICE void complete() const { store_if_negative(sum[0] + sum[1]); }

  /// Reduces the row sums over the quad; returns 1 / sum (0 for a row without keys) and lse. Without a maximum the sum is 0, or NaN where
  /// scores are, and stands for its inverse: 0 would hide these where dropout left nothing else.
  FOVEAL_DEVICE void finish(float scale_log2, float (&inverse)[2], float (&lse)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float total = quad_sum(sum[r]);
      const bool empty = reference[r] == -infinity();
      inverse[r] = empty ? total : 1.0f / total;
      lse[r] = empty ? total - infinity() : natural(reference[r], scale_log2, log2_approx(total));
    }
  }

  /// The same for a part: lse in f64, which keeps the relative weight of two far rows.
  FOVEAL_DEVICE void finish(float scale_log2, float (&inverse)[2], double (&lse)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float total = quad_sum(sum[r]);
      const bool empty = reference[r] == -infinity();
      inverse[r] = empty ? total : 1.0f / total;
      const double top = empty ? -static_cast<double>(infinity()) : static_cast<double>(reference[r]) * scale_log2;
      lse[r] = (top + log2_approx(empty ? 1.0f + total : total)) * 0.69314718055994531;
    }
  }

  /// The same with a sink in the denominator.
  FOVEAL_DEVICE void finish(float scale_log2, const float (&sink)[2], float (&inverse)[2], float (&lse)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool far = fmaxf(fabsf(reference[r] * scale_log2), fabsf(sink[r])) >= kFarReference;
      const float unit = far ? kLog2e : 1.0f;  // far rows are merged in natural units, others in base 2
      const float shift = reference[r] * (far ? scale_log2 * kLn2 : scale_log2), sink_shift = far ? sink[r] : sink[r] * kLog2e;
      const float top = fmaxf(shift, sink_shift);
      const bool empty = top == -infinity();  // no keys, and a sink of weight 0
      const float finite = empty ? 0.0f : top;
      const float of_keys = exp2_real((shift - finite) * unit);
      const float total = quad_sum(sum[r]) * of_keys + exp2_real((sink_shift - finite) * unit);
      inverse[r] = empty ? total : of_keys / total;
      lse[r] = far ? top + log2_approx(total) * kLn2 : (top + log2_approx(total)) * kLn2;
    }
  }

 private:
  /// reference + log(sum); the reference may overflow in base 2.
  FOVEAL_DEVICE static float natural(float reference, float scale_log2, float log2_sum) {
    const float shift = reference * scale_log2;
    return fabsf(shift) < kFarReference ? (shift + log2_sum) * kLn2 : fmaf(reference, scale_log2 * kLn2, log2_sum * kLn2);
  }
};

}  // namespace foveal::device
