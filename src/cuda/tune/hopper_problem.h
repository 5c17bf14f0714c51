#pragma once
// A problem as the Hopper kernels see it: what their choices, schedules and sources keep asking about it is found once.
#include <optional>
#include <string>

#include "cuda/device/sm90_config.cuh"
#include "cuda/score/score_forms.h"
#include "mask/band.h"
#include "problem/problem.h"

namespace foveal::device {
const char* to_string(TileSource source);
std::string value_text(TileSource source);  ///< as device text
}  // namespace foveal::device

namespace foveal::cuda {

/// The mask as the kernels see it. `band` counts local positions and is clamped to 32 bits.
struct Sm90Mask {
  device::TileSource tiles = device::TileSource::all;
  mask::Band band{};
  bool is_list() const { return tiles == device::TileSource::list; }
};
Sm90Mask sm90_mask(const problem::Problem& problem);

/// Refers to the problem, which must outlive it. Not for several threads at once.
class HopperProblem {
 public:
  explicit(false) HopperProblem(const problem::Problem& p) : HopperProblem(p, sm90_mask(p)) {}
  HopperProblem(const problem::Problem& p, const Sm90Mask& found) : problem(p), mask(found) {}
  HopperProblem(const HopperProblem&) = delete;
  HopperProblem& operator=(const HopperProblem&) = delete;

  const problem::Problem& problem;
  const Sm90Mask mask;

  /// Forms of the pass's program with nothing given. Found by the first call.
  const ScoreForms& forms() const;
  /// find_line_values(). Found by the first call.
  const LineValues& lines() const;

 private:
  mutable std::optional<ScoreForms> forms_;
  mutable std::optional<LineValues> lines_;
};

}  // namespace foveal::cuda
