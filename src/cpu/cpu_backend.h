#pragma once
// Fused attention on CPUs.
#include <memory>

#include "plan/backend.h"

namespace foveal::cpu {

std::unique_ptr<planning::Backend> make_cpu_backend();

}  // namespace foveal::cpu
