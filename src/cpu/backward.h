#pragma once
// The backward pass on the CPU.
#include <memory>

#include "cpu/setup.h"

namespace foveal::cpu {

template <class Real>
std::unique_ptr<planning::Executable> make_backward(const problem::Problem& problem, const Target& target, const BlockOps<Real>& ops,
                                                    const PlanOptions& options);

}  // namespace foveal::cpu
