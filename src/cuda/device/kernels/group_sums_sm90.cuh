// Writes dK or dV where several tasks have added to it: from fp32 sums (tile/group_sum.cuh) to the caller's tensor.
//
// config.cuh: kProblem, kConfig (a GroupSumsConfig). The tensor of a part is fp32, and may be added to.
#include "group_sums_args.cuh"
#include "layout/agreed.cuh"
#include "tile/fragment.cuh"
#include "tile/group_sum.cuh"
#include "tile/part.cuh"

/// Grid: (64 keys of the longest sequence, kv heads, sequences).
extern "C" __global__ void __launch_bounds__(foveal::device::kConvertThreads)
    group_sums_sm90(const __grid_constant__ foveal::device::GroupSumsArgs args) {
  using namespace foveal::device;
  constexpr GroupSumShape kSum(kConfig.columns);
  const int first_key = kSum.rows * blockIdx.x, head = blockIdx.y;
  const Sequence sequence = find_sequence(args.attention, blockIdx.z);
  if (first_key >= sequence.len_kv) return;
  const float* from = group_sum<kConfig.columns>(args.sums, sequence, head, first_key) + 4 * threadIdx.x;
  float acc[kSum.columns / 2];
#pragma unroll
  for (int i = 0; i < kSum.columns / 2; i += 4) {
    const float4 value = *reinterpret_cast<const float4*>(from + i * kConvertThreads);
    acc[i] = value.x;
    acc[i + 1] = value.y;
    acc[i + 2] = value.z;
    acc[i + 3] = value.w;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = first_key + fragment_first_row(threadIdx.x) + 8 * r;
    const int columns = key < sequence.len_kv ? kConfig.columns : 0;
    const i64 first = sequence.batch * args.to.batch + head * args.to.head + (sequence.first_kv + key) * args.to.seq;
    if constexpr (kProblem.part) {
      add_row(static_cast<float*>(args.to.data) + first, acc, r, 1.0f, args.attention.part.adds_to_kv ? 1.0f : 0.0f, columns,
              threadIdx.x % 32);
    } else {
      store_row<Element>(static_cast<u16*>(args.to.data) + first, acc, r, 1.0f, columns, threadIdx.x % 32);
    }
  }
}
