#pragma once
// Unfused attention on a BLAS, the baseline of `bench`: the score matrix is materialised in fp32, masked and normalised; the backward pass
// reads the saved probabilities.
#include <memory>
#include <string>

#include "problem/case_data.h"

namespace foveal::cli {

class Unfused {
 public:
  virtual ~Unfused() = default;
  /// Runs the line's pass, a backward pass without its forward pass.
  virtual void run() = 0;
};

/// Null, with the reason, if the line cannot be computed this way: no BLAS, a score_mod, packed sequences, dropout, a sink, or too much
/// memory.
std::unique_ptr<Unfused> make_unfused(const problem::CaseData& data, int threads, std::string& why_not);

}  // namespace foveal::cli
