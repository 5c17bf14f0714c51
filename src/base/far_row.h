#pragma once
// Far rows: rows whose lse is far from 0, because all scores are near one large number, from a soft mask (-1e9, or the lowest number
// of a type) or from huge dot products. The rounding of lse then shows in exp(score - lse): at 1e9 an fp32 has steps of 64. The
// backward pass recomputes their maxima and sums.
#include <cmath>

namespace foveal::base {

constexpr double far_lse = 4096;  ///< the error of lse in fp32 is 2^-12 there, about that of the scores
inline bool is_far(double lse) { return std::isfinite(lse) && std::abs(lse) >= far_lse; }

/// log(sum) for the gradients of a far row with recomputed maximum and sum: its probabilities are exp((score - largest) - result). An lse
/// other than the rounded largest + log_sum is one over more keys (of other shards), and takes precedence.
inline double far_log_sum(double lse, double largest, double log_sum, double epsilon) {
  const bool of_these = std::abs(lse - (largest + log_sum)) <= 4 * epsilon * std::abs(lse);
  return of_these ? log_sum : lse - largest;
}

}  // namespace foveal::base
