#pragma once
// Keys and values on pages, for kernels that want those of a sequence together: copied before a pass, and
// their gradients summed into the pages after it.
#include <memory>

#include "cuda/candidate.h"

namespace foveal::cuda {

/// The problem that such a pass is made for (plan/gather_pages.h).
problem::Problem gathered(const problem::Problem& paged);

/// Why the device cannot gather, or nothing.
std::optional<std::string> refuses_gathering(const problem::Problem& paged);

/// pass: made for gathered(paged). Its results are those of `paged`.
std::unique_ptr<GpuExecutable> with_gathered_pages(const problem::Problem& paged, std::unique_ptr<GpuExecutable> pass);

}  // namespace foveal::cuda
