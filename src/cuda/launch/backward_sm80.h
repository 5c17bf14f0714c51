#pragma once
// The portable backward pass: delta and far rows, then dk and dv, then dq with the gradients of
// parameters (split), or both in one launch (two_scan).
#include "cuda/candidate.h"
#include "cuda/jit/source.h"
#include "cuda/tune/sm80.h"

namespace foveal::cuda {

extern const Candidate backward_sm80;

jit::KernelSource delta_sm80_source(const problem::Problem& problem);
/// The kernel for a problem and tiles; arch is left to the caller.
jit::KernelSource backward_sm80_source(const problem::Problem& problem, Sm80Kernel kernel, const Sm80Config& config);
/// For read `read` of the score program, whose elements several batches or heads share.
jit::KernelSource pairs_sm80_source(const problem::Problem& problem, const Sm80Config& config, int read);

/// One configuration that suits both halves, for two_scan.
std::optional<Chosen<Sm80Config>> two_scan_choice(const problem::Problem& problem, std::size_t shared_bytes_per_block);

}  // namespace foveal::cuda
