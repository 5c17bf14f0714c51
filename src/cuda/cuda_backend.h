#pragma once
// Attention on NVIDIA GPUs. Present in every build; refuses, with the reason, where there is no driver, no compiler or no device.
#include <memory>

#include "plan/backend.h"

namespace foveal::cuda {

std::unique_ptr<planning::Backend> make_cuda_backend();

}  // namespace foveal::cuda
