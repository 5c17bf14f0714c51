// The dk and dv half of the split backward pass.
//
// config.cuh: kProblem, kConfig (a PortableConfig), kWanted (WantedGradients).
#include "tile/dkdv_tile.cuh"

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, kConfig.ctas)
    dkdv_sm80(const __grid_constant__ foveal::device::AttentionArgs args) {
  extern __shared__ uint4 shared[];
  static_assert(foveal::device::kDkdvShared.bytes == kSharedBytes, "the host set aside another size");
  foveal::device::dkdv_tile(args, int(blockIdx.x), shared);
}
