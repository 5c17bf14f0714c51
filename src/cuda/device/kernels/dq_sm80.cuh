// The dq half of the split backward pass; without dq it only collects the gradients of parameters.
//
// config.cuh: kProblem, kConfig (a PortableConfig), kWanted (WantedGradients).
#include "tile/dq_tile.cuh"

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, kConfig.ctas)
    dq_sm80(const __grid_constant__ foveal::device::AttentionArgs args) {
  extern __shared__ uint4 shared[];
  static_assert(foveal::device::kDqShared.bytes == kSharedBytes, "the host set aside another size");
  foveal::device::dq_tile(args, int(blockIdx.x), shared);
}
