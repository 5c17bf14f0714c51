#pragma once
// The interval rule of each operation: bounds that hold for every value of the operands within their bounds. Real results are widened by
// more than any backend's rounding, so that a bound found in double also holds for a kernel that computes in float with fast functions.
#include "score/interval.h"

namespace foveal::scoring::interval_rules {

Interval everything(Type type);  ///< the interval of a value of which nothing is known
Interval widened(Interval x);    ///< by the rounding of one real operation

#define FOVEAL_X(name) Interval name(Type type, const Interval& a, const Interval& b, const Interval& c);
FOVEAL_X(add) FOVEAL_X(sub) FOVEAL_X(mul) FOVEAL_X(div) FOVEAL_X(floor_div) FOVEAL_X(mod) FOVEAL_X(neg) FOVEAL_X(abs) FOVEAL_X(min)
FOVEAL_X(max) FOVEAL_X(exp) FOVEAL_X(exp2) FOVEAL_X(log) FOVEAL_X(log2) FOVEAL_X(sqrt) FOVEAL_X(rsqrt) FOVEAL_X(tanh) FOVEAL_X(sigmoid)
FOVEAL_X(sin) FOVEAL_X(cos) FOVEAL_X(tan) FOVEAL_X(erf) FOVEAL_X(floor) FOVEAL_X(pow) FOVEAL_X(eq) FOVEAL_X(ne) FOVEAL_X(lt) FOVEAL_X(le)
FOVEAL_X(logical_and) FOVEAL_X(logical_or) FOVEAL_X(logical_not) FOVEAL_X(logical_xor) FOVEAL_X(select) FOVEAL_X(to_real)
FOVEAL_X(to_integer) FOVEAL_X(to_boolean)
#undef FOVEAL_X

}  // namespace foveal::scoring::interval_rules
