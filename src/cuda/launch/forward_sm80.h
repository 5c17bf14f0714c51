#pragma once
// The portable forward kernel: any head dim up to sm80_max_head_dim, any strides and alignment, all element types.
#include "cuda/candidate.h"
#include "cuda/jit/source.h"
#include "cuda/tune/sm80.h"

namespace foveal::cuda {

extern const Candidate forward_sm80;

/// The kernel for a problem and tiles; arch is left to the caller.
jit::KernelSource forward_sm80_source(const problem::Problem& problem, const Sm80Config& config);

/// What choices of portable kernels look at.
inline Sm80Device sm80_device(const driver::DeviceFacts& facts) { return {facts.shared_bytes_per_block, facts.name}; }

/// What the portable kernels cannot do, forward or backward.
std::optional<std::string> refuses_sm80(const problem::Problem& problem);

}  // namespace foveal::cuda
