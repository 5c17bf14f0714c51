#pragma once
// Attention::checked on GPUs: before a pass runs, another kernel looks at every pair, and the host waits for what it finds.
#include <memory>

#include "cuda/candidate.h"

namespace foveal::cuda {

/// The same pass with checked reads. Its run waits for the stream, and throws Error{invalid_argument} for the first
/// pair that is kept and reads outside a parameter.
std::unique_ptr<GpuExecutable> with_checked_reads(const problem::Problem& problem, std::unique_ptr<GpuExecutable> pass);

jit::KernelSource outside_reads_source(const problem::Problem& problem);

}  // namespace foveal::cuda
