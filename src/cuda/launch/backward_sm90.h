#pragma once
// The fused backward for Hopper: bf16 and f16, head dims up to 256 that are multiples of 8, rows aligned to 16 bytes. It launches, in this
// order: a kernel that prepares statistics and clears dq sums; the main kernel with the five products; where several tasks share a kv head,
// the conversion of dk and dv sums; the conversion of dq from its fp32 sum; then the passes that sum gradients of parameters
// (tune/read_plan.h).
#include "cuda/candidate.h"
#include "cuda/jit/source.h"
#include "cuda/tune/sm90.h"

namespace foveal::cuda {

extern const Candidate backward_sm90;

jit::KernelSource backward_sm90_source(const HopperProblem& problem, const Sm90BackwardConfig& config);
jit::KernelSource backward_prepare_sm90_source(const HopperProblem& problem, const Sm90BackwardConfig& config);
jit::KernelSource backward_convert_sm90_source(const HopperProblem& problem, const Sm90BackwardConfig& config);

}  // namespace foveal::cuda
