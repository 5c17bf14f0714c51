#pragma once
// The precision of float32 in expressions that come from a framework.
#include <vector>

#include "foveal/score.h"

namespace foveal::python {

/// An expression some of whose values, `singles`, are float32 in the framework. Rounds those that change what is decided: that lead to a
/// comparison, a rounding or an index. Kernels compute all others in float32, or wider.
Expr float32_where_deciding(const Expr& expr, const std::vector<Expr>& singles);

}  // namespace foveal::python
