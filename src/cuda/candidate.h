#pragma once
// One family of kernels that the CUDA backend may use for a problem. Candidates are asked in order; the first that does not refuse
// prepares.
#include <memory>
#include <optional>
#include <string>

#include "cuda/jit/driver.h"
#include "plan/backend.h"

namespace foveal::cuda {

struct Candidate {
  const char* target;  ///< "sm90", "sm80": PlanOptions::target
  Pass pass;
  std::optional<std::string> (*refuses)(const problem::Problem& problem, const driver::DeviceFacts& facts);
  std::unique_ptr<planning::Executable> (*prepare)(const problem::Problem& problem, const driver::DeviceFacts& facts);
};

}  // namespace foveal::cuda
