#pragma once
// Far rows (docs/numerics.md): lse is so large that its rounding error shows in exp(score - lse). The backward pass recomputes their
// largest score, and the sum of exponentials relative to it; see base/far_row.h.
#include "layout/agreed.cuh"
#include "score/functions.cuh"

namespace foveal::device {

template <class Real>
FOVEAL_DEVICE bool is_far(Real lse) {
  const Real size = lse < 0 ? -lse : lse;
  return size >= Real(kFarLse) && size < Real(infinity());
}

/// score - largest, not contracted with the product that gave the score: an FMA would expose the rounding error of the largest score.
FOVEAL_DEVICE float unfused_difference(float score, float largest) { return __fsub_rn(score, largest); }
FOVEAL_DEVICE double unfused_difference(double score, double largest) { return __dsub_rn(score, largest); }

/// The largest score of a row and the sum of exp2((score - largest) * exponent); sum 0: empty. With a negative exponent `largest` is the
/// smallest score.
template <class Real>
struct RowMeasure {
  Real largest = 0, sum = 0;

  FOVEAL_DEVICE void add(Real score, Real exponent) {
    if (score * (exponent / 2) == -Real(infinity())) return;  // halved, as a finite score may overflow in base 2
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
  /// Joins the lanes whose indices differ in the bits `lanes`. Warp-collective.
  FOVEAL_DEVICE void join_lanes(int lanes, Real exponent) {
    const RowMeasure other{__shfl_xor_sync(~0u, largest, lanes), __shfl_xor_sync(~0u, sum, lanes)};
    join(other, exponent);
  }

  /// log(sum) in natural units, like `largest_score`; includes a sink with this logit, if any. If lse is not the rounded largest + log_sum,
  /// it covers keys of other shards as well, and is used instead.
  FOVEAL_DEVICE Real log_sum(Real lse, Real largest_score, Real sink) const {
    const Real above = fv_max(sink - largest_score, Real(0));
    const Real log_sum = above + log_real(sum * exp_real(-above) + exp_real(sink - largest_score - above));
    constexpr Real kEpsilon = sizeof(Real) == 8 ? Real(0x1p-52) : Real(0x1p-23);
    const bool of_these = fv_abs(lse - (largest_score + log_sum)) <= 4 * kEpsilon * fv_abs(lse);
    return of_these ? log_sum : lse - largest_score;
  }
};

}  // namespace foveal::device
