#pragma once
// Rows whose lse is far from 0 (docs/numerics.md): what it loses in rounding would show in exp(score - lse). The backward pass measures such rows anew, the largest
// score and the sum of exponentials less it; see base/far_row.h.
#include "score/functions.cuh"

namespace foveal::device {

template <class Real>
FOVEAL_DEVICE bool is_far(Real lse) {
  const Real size = lse < 0 ? -lse : lse;
  return size >= Real(4096) && size < Real(infinity());
}

/// A difference that is never merged with the product that gave the score: a fused multiply-add would show what the largest one lost by rounding.
FOVEAL_DEVICE float unfused_difference(float score, float largest) { return __fsub_rn(score, largest); }
FOVEAL_DEVICE double unfused_difference(double score, double largest) { return __dsub_rn(score, largest); }

/// The largest score of a row, and the sum of exp2((score - largest) * exponent); sum 0: none so far. With a negative exponent the largest is the lowest.
template <class Real>
struct RowMeasure {
  Real largest = 0, sum = 0;

  FOVEAL_DEVICE void add(Real score, Real exponent) {
    if (score * (exponent / 2) == -Real(infinity())) return;  // halved: base 2 may not hold what is finite
    join({score, 1}, exponent);
  }
  FOVEAL_DEVICE void join(const RowMeasure& other, Real exponent) {
    if (other.sum == 0) return;
    const Real above = unfused_difference(other.largest, largest) * exponent;
    if (sum == 0) {
      *this = other;
    } else if (above > 0) {
      largest = other.largest;
      sum = sum * exp2_real(-above) + other.sum;
    } else {
      sum += other.sum * exp2_real(above);
    }
  }
  /// By all lanes of a warp: of those whose numbers differ in `lanes` alone.
  FOVEAL_DEVICE void join_lanes(int lanes, Real exponent) {
    const RowMeasure other{__shfl_xor_sync(~0u, largest, lanes), __shfl_xor_sync(~0u, sum, lanes)};
    join(other, exponent);
  }

  /// log(sum), in natural units as `largest_score` is; with a sink of this logit, if there is one, as one more term. An lse that is another's than the rounded
  /// largest + log_sum belongs to more keys than these (of other shards), and counts.
  FOVEAL_DEVICE Real log_sum(Real lse, Real largest_score, Real sink) const {
    const Real above = fv_max(sink - largest_score, Real(0));
    const Real log_sum = above + log_real(sum * exp_real(-above) + exp_real(sink - largest_score - above));
    constexpr Real kEpsilon = sizeof(Real) == 8 ? Real(0x1p-52) : Real(0x1p-23);
    const bool of_these = fv_abs(lse - (largest_score + log_sum)) <= 4 * kEpsilon * fv_abs(lse);
    return of_these ? log_sum : lse - largest_score;
  }
};

}  // namespace foveal::device
