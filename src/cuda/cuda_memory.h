#pragma once
// Memory of a GPU, for workspaces, checks and benchmarks.
#include "plan/device_memory.h"

namespace foveal::cuda {

planning::DeviceMemory& cuda_memory(int device);

}  // namespace foveal::cuda
