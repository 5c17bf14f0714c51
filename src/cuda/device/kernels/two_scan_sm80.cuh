// Backward in one launch: each block computes a tile of dk and dv, then a tile of dq.
//
// config.cuh: kProblem, kConfig (a PortableConfig), kWanted (WantedGradients).
#include "tile/dkdv_tile.cuh"
#include "tile/dq_tile.cuh"

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, kConfig.ctas)
    two_scan_sm80(const __grid_constant__ foveal::device::AttentionArgs args) {
  using namespace foveal::device;
  extern __shared__ uint4 shared[];
  static_assert(two_scan_bytes(kDqShape) == kSharedBytes, "the host set aside another size");
  const int task = int(blockIdx.x);
  if (task < args.tiles_kv * args.heads_kv * args.batch) dkdv_tile(args, task, shared);
  __syncthreads();
  if (task < args.tiles_q * args.heads_q * args.batch) dq_tile(args, task, shared);
}
