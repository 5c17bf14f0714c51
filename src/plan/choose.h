#pragma once
// Chooses the backend: the first in order that supports the problem; all refusals are kept.
#include <memory>
#include <vector>

#include "plan/backend.h"

namespace foveal::planning {

/// The state of a Plan. Immutable, so that any number of threads may run it.
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

/// Throws invalid_argument for options that name an unknown backend or target, or have an impossible number of threads or executor.
void check_options(const PlanOptions& options, const Backends& backends);

/// Throws invalid_argument for options that name an unknown backend or target, unsupported (listing all refusals) if every backend
/// declines.
std::shared_ptr<const PlanState> choose(problem::Problem problem, const PlanOptions& options, const Backends& backends);

/// Number of calls of choose() in this process, for tests of plan caching.
long choices_made();

}  // namespace foveal::planning
