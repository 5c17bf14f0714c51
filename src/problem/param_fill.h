#pragma once
// The ways to fill a parameter of a problem line, and whether its dtype holds what they give.
#include <string>

#include "problem/line.h"

namespace foveal::problem {

/// Whether there is a fill of this name that takes this many numbers.
bool is_known(const ParamFill& fill);
/// `normal/1, uniform/2, ...`: names, and how many numbers they take.
std::string known_fills();

/// What is wrong with a parameter's fill: its numbers, or values that the dtype would have to round or cut off. Empty if nothing is.
std::string misfit(const ParamLine& line);

}  // namespace foveal::problem
