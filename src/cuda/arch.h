#pragma once
// What is known of GPUs that need not be present, by the name of their architecture.
#include <string>
#include <vector>

#include "cuda/jit/driver.h"

namespace foveal::cuda {

/// 86 of "sm_86", 90 of "sm_90a". Like the others, throws invalid_argument for an arch that is not known.
int capability_of(const std::string& arch);

/// How many multiprocessors the cards of an architecture have, the most first; the first is the usual number.
std::vector<int> multiprocessors_of(const std::string& arch);

/// Typical facts of an architecture; multiprocessors: 0 for the usual number.
driver::DeviceFacts facts_of_arch(const std::string& arch, int multiprocessors);

}  // namespace foveal::cuda
