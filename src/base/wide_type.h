#pragma once
// The type of what is summed over many elements, and of statistics of rows.
#include "foveal/tensor.h"

namespace foveal::base {

constexpr DType wide_type(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace foveal::base
