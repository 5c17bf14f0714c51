#pragma once
// Reals as numbers of a shorter type, as a conversion rounds them: to the nearest one, ties to even, infinite beyond the largest.
#include "base/float16.h"

namespace foveal::scoring {

inline double to_float32(double x) { return static_cast<double>(static_cast<float>(x)); }
inline double to_bfloat16(double x) { return static_cast<double>(base::bf16_to_float(base::float_to_bf16(static_cast<float>(x)))); }
inline double to_float16(double x) { return static_cast<double>(base::f16_to_float(base::float_to_f16(static_cast<float>(x)))); }

}  // namespace foveal::scoring
