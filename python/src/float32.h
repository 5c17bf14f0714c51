#pragma once
// The precision of float32 in expressions that come from a framework.
#include <vector>

#include "foveal/score.h"

namespace foveal::python {

/// An expression some of whose values, `singles`, are float32 in the framework. Rounds those that change what is decided: that lead to a
/// comparison, a rounding or an index. Kernels compute all others in float32, or wider.
Expr float32_where_deciding(const Expr& expr, const std::vector<Expr>& singles);

/// An expression some of whose values, `doubles`, are float64 in the framework, beside scores of float32. Their sums, in which large numbers may
/// cancel, are computed in float64 and then rounded; what is made of these, in float32.
Expr float64_sums(const Expr& expr, const std::vector<Expr>& doubles);

}  // namespace foveal::python
