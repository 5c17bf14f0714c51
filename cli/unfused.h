#pragma once
// The textbook computation that fused kernels replace, as fast as a BLAS makes it: scores of every pair written to memory in fp32,
// masked, normalised, multiplied; the backward pass reads the kept probabilities. What `bench` prints beside a kernel.
#include <memory>
#include <string>

#include "problem/case_data.h"

namespace foveal::cli {

class Unfused {
 public:
  virtual ~Unfused() = default;
  /// The pass of the line; a backward pass without its forward.
  virtual void run() = 0;
};

/// Null, and why, when the line cannot be computed this way: no BLAS, a score_mod, packed sequences, dropout, a sink, or no memory for it.
std::unique_ptr<Unfused> make_unfused(const problem::CaseData& data, int threads, std::string& why_not);

}  // namespace foveal::cli
