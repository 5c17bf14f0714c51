// After the backward of kernels/backward_sm90.cuh: the fp32 sum of dq, in the order of that kernel's accumulators, to dq in 16 bits, times the scale.
//
// Configuration: bool kBf16, kVarlen; int kHeadDim, kBlockQ as for the kernel before.
#include "abi/sm90.h"
#include "schedule/tile_walk.cuh"
#include "tile/fragment.cuh"

constexpr int kSumColumns = round_up(kHeadDim, 64);
constexpr bool kSplitColumns = kBlockQ == 64;
constexpr int kParts = 2;                                                     // what one warpgroup added: 64 rows
constexpr int kGroupColumns = kSplitColumns ? kSumColumns / 2 : kSumColumns;  // of these columns

/// Grid: (2 * query tiles of the longest sequence, query heads, sequences); a block does one part.
extern "C" __global__ void __launch_bounds__(128) backward_convert_sm90(const __grid_constant__ BackwardArgs args) {
  const int tile = blockIdx.x / kParts, part = blockIdx.x % kParts;
  const int head = blockIdx.y, batch = blockIdx.z;
  const Sequence sequence = sequence_of<kVarlen>(args.space, batch);
  const int row = tile * kBlockQ + (kSplitColumns ? 0 : 64 * part) + fragment_first_row(threadIdx.x);
  const int column = kSplitColumns ? kGroupColumns * part : 0;
  if (tile * kBlockQ >= sequence.length_q) return;

  const float* from = args.dq_sum + (stat_offset<kVarlen>(args, sequence, batch, head) + tile * kBlockQ) * kSumColumns +
                      part * 64 * kGroupColumns + 4 * threadIdx.x;
  float acc[kGroupColumns / 2];
#pragma unroll
  for (int i = 0; i < kGroupColumns / 2; i += 4) {
    const float4 value = *reinterpret_cast<const float4*>(from + i * 128);
    acc[i] = value.x;
    acc[i + 1] = value.y;
    acc[i + 2] = value.z;
    acc[i + 3] = value.w;
  }
  u16* base = static_cast<u16*>(args.dq.data) + (kVarlen ? 0 : batch * args.dq.batch_stride) + head * args.dq.head_stride + column;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool exists = row + 8 * r < sequence.length_q;
    store_row<kBf16>(base + static_cast<i64>(sequence.first_q + row + 8 * r) * args.dq.row_stride, acc, r, args.scale,
                     exists ? kHeadDim - column : 0, threadIdx.x % 32);
  }
}
