#pragma once
// Warp specialisation of the backward kernels: a producer warpgroup with helper warps, and the consumers.
#include "tile/backward_epilogue.cuh"
#include "tile/backward_loads.cuh"

namespace foveal::device {

/// For kernels whose consumer warpgroups are all alike.
template <class Group>
FOVEAL_DEVICE void run_cta(const Sm90Args& args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Pipelines pipelines(shared);
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  pipelines.init();
  if (warp_group == 0) {
    run_helper_warps(args, pipelines);
  } else {
    registers_increase<kConfig.consumer_registers()>();
    Group(args, pipelines, warp_group - 1).run();
  }
}

}  // namespace foveal::device
