#pragma once
// Masks that keep a band of diagonals: causal masks, windows, and both at once. Kernels test such pairs with two comparisons.
#include <cstdint>
#include <optional>

#include "score/program.h"

namespace foveal::mask {

/// Kept when low <= kv_idx - q_idx <= high.
struct Band {
  static constexpr std::int64_t unlimited = std::int64_t{1} << 40;
  std::int64_t low = -unlimited, high = unlimited;
};

/// The band that a mask program keeps, when its form shows that it keeps one: comparisons of q_idx and kv_idx with constants (and lengths,
/// when they are known), joined by &. An empty program keeps everything.
std::optional<Band> find_band(const scoring::Program& mask, std::optional<std::int64_t> seqlen_q, std::optional<std::int64_t> seqlen_kv);

}  // namespace foveal::mask
