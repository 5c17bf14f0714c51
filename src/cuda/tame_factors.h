#pragma once
// Which factors of trained reads are finite wherever the values of lines are: what a kernel tests once for a line need not be tested for each term.
#include <vector>

#include "cuda/score_lines.h"
#include "problem/problem.h"

namespace foveal::cuda {

/// A factor that is a product or a sum of few values, each of one position, cannot overflow as long as these are tame: at most
/// device::kTame in size.
struct TameFactors {
  std::vector<bool> reads;                   ///< of each trained read: is its factor such?
  std::vector<scoring::ValueId> walk, keys;  ///< what has to be tame for that: values of queries, of lines.walk, and values of keys
};
/// Of a backward pass, in the units of the terms; lines: what the kernel has of a tile's lines.
TameFactors tame_factors(const problem::Problem& problem, const LineValues& lines);

}  // namespace foveal::cuda
