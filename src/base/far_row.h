#pragma once
// Rows whose lse is far from 0: all their scores are about one large number, of a soft mask (-1e9, the least of a type) or of huge dot
// products. What lse loses in rounding then shows in exp(score - lse): at 1e9 an fp32 has steps of 64. The backward pass measures such rows
// anew.
#include <cmath>

namespace foveal::base {

constexpr double far_lse = 4096;  ///< lse is off by 2^-12 there in fp32: about what the scores themselves are
inline bool is_far(double lse) { return std::isfinite(lse) && std::abs(lse) >= far_lse; }

/// log(sum) for gradients of a far row that was measured: exp((score - largest) - result) are its probabilities. An lse that is another's
/// than the rounded largest + log_sum belongs to more keys than these (of other shards), and counts.
inline double far_log_sum(double lse, double largest, double log_sum, double epsilon) {
  const bool of_these = std::abs(lse - (largest + log_sum)) <= 4 * epsilon * std::abs(lse);
  return of_these ? log_sum : lse - largest;
}

}  // namespace foveal::base
