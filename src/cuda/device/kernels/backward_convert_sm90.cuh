// Backward postprocessing: converts the fp32 dq accumulator, which is in the accumulator order of kernels/backward_sm90.cuh, to dq in 16
// bits, times the scale and the constant part of the score's slope. Rows whose sum is infinite or NaN through keys that they do not keep
// are recomputed (tile/recompute_dq.cuh).
//
// config.cuh: kProblem, kConfig (a BackwardRowsConfig).
#include "layout/agreed.cuh"
#include "schedule/tasks.cuh"
#include "score/score.cuh"
#include "tile/dq_sum.cuh"
#include "tile/fragment.cuh"
#include "tile/recompute_dq.cuh"
#include "tile/part.cuh"

namespace foveal::device {

/// May a tile contain keys that only some of its queries keep? Then 0 was multiplied with whatever those keys hold.
constexpr bool kHasPartialTiles = kHasMask || kProblem.key_rows != KeyRows::batched;
/// Blocks for each multiprocessor: the noinline recomputation would like more registers, at the price of fewer warps for the loads of all.
constexpr int kBlocks = kAddsToDq ? 8 : 12;

}  // namespace foveal::device

/// Grid: (kSumParts * query tiles of the longest sequence, query heads, sequences); one part for each block.
extern "C" __global__ void __launch_bounds__(foveal::device::kConvertThreads, foveal::device::kBlocks)
    backward_convert_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  using namespace foveal::device;
  const int tile = blockIdx.x / kSumParts, part = blockIdx.x % kSumParts;
  const int head = blockIdx.y, batch = blockIdx.z;
  const Sequence sequence = find_sequence(args.attention, batch);
  if (tile * kBlockQ >= sequence.len_q) return;
  const int row = tile * kBlockQ + (kSplitColumns ? 0 : 64 * part) + fragment_first_row(threadIdx.x);
  const int column = kSplitColumns ? kPartColumns * part : 0;

  const float* from = args.dq_sum + (stat_row<kProblem.varlen>(args, sequence, head) + tile * kBlockQ) * kSumColumns +
                      part * 64 * kPartColumns + 4 * threadIdx.x;
  float acc[kPartColumns / 2];
#pragma unroll
  for (int i = 0; i < kPartColumns / 2; i += 4) {
    const float4 value = *reinterpret_cast<const float4*>(from + i * kConvertThreads);
    acc[i] = value.x;
    acc[i + 1] = value.y;
    acc[i + 2] = value.z;
    acc[i + 3] = value.w;
  }
  bool nonfinite[2] = {};
  if constexpr (kHasPartialTiles) {
#pragma unroll
    for (int r = 0; r < 2; ++r) nonfinite[r] = row + 8 * r < sequence.len_q && has_nonfinite(acc, r);
  }
  const float scale = args.scale;
  if constexpr (kHasScore) {
    const float unit = slope_unit({1, scale}, {batch, head, 0, 0, sequence.len_q, sequence.len_kv}, args.attention.score);
#pragma unroll
    for (int i = 0; i < kPartColumns / 2; ++i) acc[i] = apply_unit(acc[i], unit);
  }
  const Tensor& dq = args.attention.dq;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int here = row + 8 * r, columns = here < sequence.len_q ? min(kProblem.head_dim - column, kPartColumns) : 0;
    const i64 first = batch * dq.batch + head * dq.head + (sequence.first_q + here) * dq.seq + column;
    if constexpr (kAddsToDq) {
      add_row(static_cast<float*>(dq.data) + first, acc, r, scale, args.attention.part.adds_to_q ? 1.0f : 0.0f, nonfinite[r] ? 0 : columns,
              threadIdx.x % 32);
    } else {
      store_row<Element>(static_cast<u16*>(dq.data) + first, acc, r, scale, columns, threadIdx.x % 32);
    }
  }
  if constexpr (kHasPartialTiles) {
    if (!__any_sync(~0u, nonfinite[0] || nonfinite[1])) return;
    __syncwarp();
    recompute_dq(args, batch, head, row - lane_id() / 4, column, nonfinite[0], nonfinite[1]);
  }
}
