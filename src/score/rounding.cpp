#include "score/rounding.h"

#include "base/float16.h"

namespace foveal::scoring {

double to_float32(double x) { return static_cast<double>(static_cast<float>(x)); }
double to_bfloat16(double x) { return static_cast<double>(base::bf16_to_float(base::float_to_bf16(static_cast<float>(x)))); }
double to_float16(double x) { return static_cast<double>(base::f16_to_float(base::float_to_f16(static_cast<float>(x)))); }

}  // namespace foveal::scoring
