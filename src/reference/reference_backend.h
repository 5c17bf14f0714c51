#pragma once
// The slow exact backend: everything foveal means, row by row in double, on tensors of any type and strides. What it computes is correct by
// definition.
#include <memory>

#include "plan/backend.h"

namespace foveal::reference {

std::unique_ptr<planning::Backend> make_reference_backend();

}  // namespace foveal::reference
