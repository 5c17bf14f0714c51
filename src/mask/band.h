#pragma once
// Masks that are a band of diagonals: causal, sliding window, or both. Kernels test them with two comparisons.
#include <cstdint>
#include <optional>

#include "score/program.h"

namespace foveal::mask {

/// Kept when low <= kv_idx - q_idx <= high.
struct Band {
  static constexpr std::int64_t unlimited = std::int64_t{1} << 40;
  std::int64_t low = -unlimited, high = unlimited;
};

/// The band of a mask program made of comparisons of q_idx and kv_idx with constants (and known lengths), joined by &; nullopt
/// for others. An empty program keeps everything.
std::optional<Band> find_band(const scoring::Program& mask, std::optional<std::int64_t> seqlen_q, std::optional<std::int64_t> seqlen_kv);

}  // namespace foveal::mask
