#pragma once
// Arrays of any framework as the library's tensors, without copying and without waiting for a device.
#include <nanobind/nanobind.h>

#include "foveal/tensor.h"

namespace foveal::python {

/// Valid while the array lives. `argument` is the name that messages use.
TensorView view_of(nanobind::handle array, const char* argument);

/// The stream on which the array's framework would put its own work now; null on the CPU.
Stream stream_of(nanobind::handle array, Device device);

/// Row-major; throws invalid_argument when there are too many dimensions.
TensorView contiguous_view(DType dtype, Device device, const std::int64_t* sizes, int rank);

}  // namespace foveal::python
