#pragma once
// Integers that are read for each pair only to index a small table (`e[kind[q_idx, kv_idx], head]`) are converted to bytes before a forward
// pass of the Hopper kernels: `kind` is read once in its own type, and as bytes by each head of each sequence.
#include <memory>
#include <optional>

#include "cuda/candidate.h"

namespace foveal::cuda {

/// The problem with such parameters as bytes, which the pass keeps in its workspace. nullopt if there are none, or if each is read by too
/// few pairs to pay.
std::optional<problem::Problem> narrowed(const problem::Problem& problem);
/// pass: made for the narrow problem.
std::unique_ptr<GpuExecutable> with_narrow_indices(const problem::Problem& problem, const problem::Problem& narrow,
                                                   std::unique_ptr<GpuExecutable> pass);

}  // namespace foveal::cuda
