#pragma once
// Which values of a score kernels may evaluate once for a line of a tile instead of for every pair on it.
#include <vector>

#include "problem/problem.h"

namespace foveal::cuda {

/// Real values, and integers that are read, of the pass's program that pairs use and that are the same for all pairs of one position along
/// the walk of a task (a key in the forward pass, a query in the backward pass), or for all pairs of one diagonal.
struct LineValues {
  std::vector<scoring::ValueId> walk, diagonal;
  bool checked = false;  ///< those of the walk are looked at: are all of a tile tame (tame_factors.h)?
  bool empty() const { return walk.empty() && diagonal.empty(); }
  /// For one tile.
  std::size_t count(int rows, int walked) const {
    constexpr std::size_t answer = 4;  // one word, and places of 16 bytes
    return walk.size() * static_cast<std::size_t>(walked) + diagonal.size() * static_cast<std::size_t>(rows + walked) +
           (checked ? answer : 0);
  }
};
/// stepped: for each value of the pass's program, do kernels step through it instead (score_emit.h: straight_values)?
LineValues find_line_values(const problem::Problem& problem, const std::vector<bool>& stepped);
/// Such values of a forward pass that are the same for all pairs of a query: a thread keeps those of its rows for a whole task. None if they are many.
std::vector<scoring::ValueId> find_row_values(const problem::Problem& problem);

}  // namespace foveal::cuda
