#pragma once
// The kernels that would run for a problem on a GPU that need not be present: to fill caches, to emit them, and for tests.
#include <memory>
#include <string>
#include <vector>

#include "cuda/candidate.h"
#include "cuda/jit/source.h"
#include "problem/problem.h"

namespace foveal::cuda {

/// arch: "sm_80", "sm_90a", ...; target: "" for the first that can, or "sm80", "sm90". Throws invalid_argument for an arch that is not
/// known, unsupported when no target can.
std::vector<jit::KernelSource> kernels_of(const problem::Problem& problem, const std::string& arch, const std::string& target);

/// The kernels of the plan that a device with these facts gets.
std::vector<jit::KernelSource> kernels_on(const problem::Problem& problem, const driver::DeviceFacts& facts, const std::string& target);
/// The configurations that these kernels may have. Both throw unsupported when no target can.
std::vector<Family> families_on(const problem::Problem& problem, const driver::DeviceFacts& facts, const std::string& target);

/// The executable itself, not yet loaded, for a device with this many multiprocessors (0: the usual number); its sources have their arch.
std::unique_ptr<GpuExecutable> executable_of(const problem::Problem& problem, const std::string& arch, const std::string& target,
                                             int multiprocessors = 0);

}  // namespace foveal::cuda
