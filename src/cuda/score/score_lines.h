#pragma once
// Values of a score that are hoisted: evaluated once per row, column or diagonal of a tile instead of per pair.
#include <vector>

#include "cuda/device/layout/sm90.cuh"
#include "problem/problem.h"

namespace foveal::cuda {

class ScoreForms;  // score_forms.h

/// Values of the pass's program (reals, and integers that are read) that are constant along a line of a tile: for one position of the walk,
/// the dimension that a task loops over (a key in the forward pass, a query in the backward pass), or for one diagonal.
struct LineValues {
  std::vector<scoring::ValueId> walk, diagonal;
  bool checked = false;  ///< it is tested whether those of the walk are bounded (finite_factors.h)
  bool empty() const { return walk.empty() && diagonal.empty(); }
  /// For one tile.
  std::size_t count(int rows, int walked) const {
    const device::LineShape shape{static_cast<int>(walk.size()), static_cast<int>(diagonal.size()), checked};
    return static_cast<std::size_t>(device::line_floats(shape, rows, walked));
  }
};
LineValues find_line_values(const problem::Problem& problem);
LineValues find_line_values(const ScoreForms& forms);  ///< of the pass's program, with nothing given
/// Values of a forward pass that are constant along a query's row, which threads keep for a task; none if they are many.
std::vector<scoring::ValueId> find_row_values(const problem::Problem& problem);
/// Those of the row values that take many instructions, which a rolled loop over pairs would repeat.
std::vector<scoring::ValueId> find_long_row_values(const ScoreForms& forms, const std::vector<scoring::ValueId>& row_values);

}  // namespace foveal::cuda
