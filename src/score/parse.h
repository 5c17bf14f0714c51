#pragma once
// Reads the text of an argument of a call.
#include <string_view>
#include <vector>

#include "foveal/score.h"

namespace foveal::scoring {

/// foveal::parse(), whose errors begin with `argument` instead of with "expression".
Expr parse(std::string_view text, const std::vector<Param>& params, const char* argument);

}  // namespace foveal::scoring
