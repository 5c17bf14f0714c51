#pragma once
// Attention::checked on GPUs: before a pass over keys in pages, the host waits for block_table and seqlens_kv and checks them.
#include <memory>

#include "cuda/candidate.h"

namespace foveal::cuda {

/// The same pass; its run throws Error{invalid_argument} that names the first length or page that cannot be, as runs on CPUs do.
std::unique_ptr<GpuExecutable> with_checked_pages(const problem::Problem& problem, std::unique_ptr<GpuExecutable> pass);

}  // namespace foveal::cuda
