// Before the backward of kernels/backward_sm90.cuh: delta = row sums of dout * out (less dlse), lse in base 2, and zeros where dq is summed.
// One group of lanes for each row of statistics, rows beyond the sequence included.
//
// Configuration: bool kBf16, kVarlen; int kHeadDim, kHeadDimV (multiples of 8, up to 256).
#include "abi/sm90.h"
#include "schedule/tile_walk.cuh"

constexpr int kRowLanes = kHeadDimV > 128 ? 32 : kHeadDimV > 64 ? 16 : 8;
constexpr int kThreads = 256;
constexpr int kRowsPerBlock = kThreads / kRowLanes;
constexpr int kSumColumns = round_up(kHeadDim, 64);

FOVEAL_DEVICE float dot8(uint4 a, uint4 b) {
  const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(unpack16_low<kBf16>(x[i]), unpack16_low<kBf16>(y[i]), sum);
    sum = fmaf(unpack16_high<kBf16>(x[i]), unpack16_high<kBf16>(y[i]), sum);
  }
  return sum;
}

/// Grid: (blocks of rows of the longest sequence, rounded up to 128, query heads, sequences).
extern "C" __global__ void __launch_bounds__(kThreads) backward_prepare_sm90(const __grid_constant__ BackwardArgs args) {
  const int head = blockIdx.y, batch = blockIdx.z;
  const int row = blockIdx.x * kRowsPerBlock + threadIdx.x / kRowLanes;
  const int lane = threadIdx.x % kRowLanes;
  const Sequence sequence = sequence_of<kVarlen>(args.space, batch);
  if (row >= round_up(sequence.length_q, 128)) return;
  const bool exists = row < sequence.length_q;
  const i64 token = sequence.first_q + row;

  float sum = 0;
  if (exists && 8 * lane < kHeadDimV) {
    const auto at = [&](const RowTensor& tensor) {
      return *reinterpret_cast<const uint4*>(static_cast<const u16*>(tensor.data) + (kVarlen ? 0 : batch * tensor.batch_stride) +
                                             head * tensor.head_stride + token * tensor.row_stride + 8 * lane);
    };
    sum = dot8(at(args.out), at(args.grad_out));
  }
#pragma unroll
  for (int step = kRowLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);

  const i64 stat = stat_offset<kVarlen>(args, sequence, batch, head) + row;
  if (lane == 0) {
    float lse2 = FOVEAL_INFINITY, delta = 0;
    if (exists) {
      const float lse = args.lse[(kVarlen ? 0 : batch * args.lse_batch_stride) + head * args.lse_head_stride + token * args.lse_row_stride];
      if (lse != -FOVEAL_INFINITY) {
        lse2 = lse * kLog2e;
        delta = sum;
        if (args.dlse != nullptr) {
          delta -= args.dlse[(kVarlen ? 0 : batch * args.dlse_batch_stride) + head * args.dlse_head_stride + token * args.dlse_row_stride];
        }
      }
    }
    args.lse2[stat] = lse2;
    args.delta[stat] = delta;
  }
  float4* zeros = reinterpret_cast<float4*>(args.dq_sum + stat * kSumColumns);
#pragma unroll
  for (int i = lane; i < kSumColumns / 4; i += kRowLanes) zeros[i] = make_float4(0, 0, 0, 0);
}
