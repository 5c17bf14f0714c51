#pragma once
// Fused attention on x86 processors.
#include <memory>

#include "plan/backend.h"

namespace foveal::cpu {

std::unique_ptr<planning::Backend> make_cpu_backend();

}  // namespace foveal::cpu
