#pragma once
// Views of arrays of any framework, without copies and without synchronisation.
#include <nanobind/nanobind.h>

#include "foveal/tensor.h"

namespace foveal::python {

/// Valid as long as the array. `argument` is its name in error messages.
TensorView view_of(nanobind::handle array, const char* argument);

/// The same of one that a score or mask reads, which takes unsigned integers of 16 and 32 bits by their bits (foveal/trace.py).
TensorView view_of_param(nanobind::handle array, const char* argument);

/// The framework's current stream on the device; null on the CPU.
Stream stream_of(nanobind::handle array, Device device);

/// Row-major; throws invalid_argument if the rank is too large.
TensorView contiguous_view(DType dtype, Device device, const std::int64_t* sizes, int rank);

}  // namespace foveal::python
