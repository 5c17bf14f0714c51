#pragma once
// Background compilation: kernels of a backward pass are compiled on other threads while those of its forward pass are.
#include <functional>

namespace foveal::python {

/// Starts the work on a thread, unless too much is running. Exceptions are dropped; they recur where the result is needed.
void begin_ahead(std::function<void()> work);

/// Waits for all work. Must be called before the interpreter exits.
void finish_ahead();

}  // namespace foveal::python
