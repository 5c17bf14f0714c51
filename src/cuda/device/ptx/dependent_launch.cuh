#pragma once
// Programmatic dependent launch: the launch that follows in the stream may begin before this one has ended, so that its CTAs are placed and
// its barriers are set up meanwhile. Without jit::LaunchShape::programmatic both are no-ops.
#include "base.cuh"

namespace foveal::device {

/// At the beginning of a kernel, by all of its threads and before any access to global memory: what earlier launches wrote is seen from
/// here on. The next launch may begin once all CTAs of this one came here.
FOVEAL_DEVICE void await_previous_launch() { asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory"); }

}  // namespace foveal::device
