#pragma once
// Integers that pairs read only to index a small table (`e[kind[q_idx, kv_idx], head]`) are narrowed to bytes before a forward pass of the
// Hopper kernels: `kind` is read once in its own type, and then as bytes for each head of each sequence.
#include <memory>
#include <optional>

#include "cuda/candidate.h"

namespace foveal::cuda {

/// The problem with such parameters as bytes, in memory of the pass; nothing where there are none, or few pairs read each.
std::optional<problem::Problem> narrowed(const problem::Problem& problem);
/// pass: made for that.
std::unique_ptr<GpuExecutable> with_narrow_indices(const problem::Problem& problem, const problem::Problem& narrow,
                                                   std::unique_ptr<GpuExecutable> pass);

}  // namespace foveal::cuda
