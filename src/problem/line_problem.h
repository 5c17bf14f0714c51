#pragma once
// The Problem of a line without its data, for planning and compiling.
#include "problem/line.h"
#include "problem/problem.h"

namespace foveal::problem {

/// With the line's tensors on `device`.
Problem problem_of(const Line& line, Device device);

}  // namespace foveal::problem
