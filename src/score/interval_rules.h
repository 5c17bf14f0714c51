#pragma once
// The interval rule of each operation. Real bounds are widened by more than any backend's rounding error, so that bounds computed in double
// also hold for kernels that compute in float with fast functions.
#include "score/interval.h"

namespace foveal::scoring::interval_rules {

Interval everything(Type type);     ///< of a value about which nothing is known
Interval widened(Interval x);       ///< by the rounding error of one real operation
Interval in_kernels(double value);  ///< of a constant or element: kernels may have it as a float, and count subnormal ones as 0
Interval whole(Interval x);         ///< of integers: widened beyond 2^53, where doubles are not exact

using Rule = Interval(Type type, const Interval& a, const Interval& b, const Interval& c);

Rule add, sub, mul, div, floor_div, mod, neg, abs, min, max, exp, exp2, log, log2, sqrt, rsqrt, tanh, sigmoid, sin, cos, tan, erf, floor,
    pow, stop_gradient;
Rule eq, ne, lt, le, logical_and, logical_or, logical_not, logical_xor, bit_and, bit_or, bit_xor, shift_left, shift_right, select, to_real,
    to_integer, to_boolean, to_int32, to_float32, to_bfloat16, to_float16;

}  // namespace foveal::scoring::interval_rules
