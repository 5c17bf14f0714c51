#pragma once
// Factors of trained reads that cannot overflow while line values are bounded: one test per line replaces one per term.
#include <vector>

#include "cuda/score/score_lines.h"
#include "problem/problem.h"

namespace foveal::cuda {

/// A polynomial of low degree in values of single positions cannot overflow while these are at most device::kTame in magnitude.
struct FiniteFactors {
  std::vector<bool> reads;                   ///< per trained read: is its factor such a polynomial?
  std::vector<scoring::ValueId> walk, keys;  ///< what must be bounded for that: values of queries, among lines.walk, and values of keys
};
/// For a backward pass; lines: the line values of the kernel.
FiniteFactors finite_factors(const problem::Problem& problem, const LineValues& lines);

}  // namespace foveal::cuda
