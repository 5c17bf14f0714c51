#pragma once
// The choice of a backend: asked in order, the first that can does it, every answer is kept.
#include <memory>
#include <vector>

#include "plan/backend.h"

namespace foveal::planning {

/// What a Plan holds. Immutable once made, so that any number of threads may run it.
struct PlanState {
  problem::Problem problem;
  PlanOptions options;
  const Backend* backend = nullptr;
  std::unique_ptr<const Executable> executable;
  std::string kernel;
  std::size_t workspace_bytes = 0;
  std::vector<Refusal> refusals;
};

using Backends = std::vector<std::unique_ptr<const Backend>>;

/// Throws invalid_argument for options that name no backend, unsupported when every backend declines; the message lists the reasons.
std::shared_ptr<const PlanState> choose(problem::Problem problem, const PlanOptions& options, const Backends& backends);

/// How often that was done in this process, for tests of what sequences of calls cost.
long choices_made();

}  // namespace foveal::planning
