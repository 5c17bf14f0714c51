#pragma once
// Work begun before it is asked for, on threads of its own: kernels of a backward pass are compiled while those of its forward pass are.
#include <functional>

namespace foveal::python {

/// Begins it, unless much is under way already. What it throws is dropped: it will be thrown again where the result is asked for.
void begin_ahead(std::function<void()> work);

/// Waits until nothing is under way: before the interpreter ends, since what the work uses ends with the process.
void finish_ahead();

}  // namespace foveal::python
