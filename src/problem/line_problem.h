#pragma once
// The Problem of a line without making its data: for planning and compiling only.
#include "problem/line.h"
#include "problem/problem.h"

namespace foveal::problem {

/// As if the line's tensors lay on `device`.
Problem problem_of(const Line& line, Device device);

}  // namespace foveal::problem
