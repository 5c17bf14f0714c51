#pragma once
#include <string>

#include "problem/case_data.h"

namespace foveal::check {

/// Runs the pass of the line where its device is, and gives the kernel's name. A backward pass reads out and lse of the same backend's
/// forward, where it has one.
std::string run_case(problem::CaseData& data, const PlanOptions& options);

}  // namespace foveal::check
