#pragma once
// The forward kernels for Hopper, one for few queries and one for more: bf16 and f16, head dims up to 256 that
// are multiples of 8, rows aligned to 16 bytes.
#include "cuda/candidate.h"
#include "cuda/jit/source.h"
#include "cuda/tune/sm90.h"

namespace foveal::cuda {

extern const Candidate forward_sm90;

jit::KernelSource forward_sm90_source(const HopperProblem& problem, const Sm90ForwardConfig& config);
jit::KernelSource merge_splits_sm90_source(const problem::Problem& problem);

}  // namespace foveal::cuda
