// The combine kernel of split-KV (kernels/decode_sm90.cuh): the output of a row is the mean of its splits' outputs, weighted by
// sum * 2^((reference - largest) * exponent). A sink counts as one more split, whose output is 0. The lse of each split would not do:
// far from 0 it has no digits left for the sum.
//
// Loads bind, so each lane has several under way, and where there are many splits several warps share a row.
//
// config.cuh: kProblem.
#include "element.cuh"
#include "ptx/dependent_launch.cuh"
#include "schedule/tasks.cuh"
#include "score/score.cuh"
#include "softmax/online.cuh"

#include "config.cuh"

namespace foveal::device {

constexpr int kThreads = 32 * kMergeWarps;
constexpr int kLaneColumns = 4;                                                    // of a load
constexpr int kColumnSteps = divide_up(kProblem.head_dim_v, kLaneColumns* kWarp);  // loads of a lane that make a row
constexpr int kLoads = 8 / kColumnSteps;                                           // splits under way at a time

/// The splits of one row, of which this warp sums first, first + step, ...
struct SplitRows {
  const Sm90Args& args;
  i64 row;
  int first, step;
  float exponent;

  FOVEAL_DEVICE SplitRow at(int split) const {
    return split < args.parts.kv_splits.value ? args.split_softmax[split * args.split_rows + row] : SplitRow{-infinity(), 0};
  }
  FOVEAL_DEVICE float top() const {
    float top = -infinity();
    for (int split = lane_id(); split < args.parts.kv_splits.value; split += kWarp) top = fmaxf(top, at(split).reference);
#pragma unroll
    for (int other = kWarp / 2; other > 0; other /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, other));
    return top;
  }
  FOVEAL_DEVICE float weight(int split, float top) const {
    const SplitRow part = at(split);
    return part.sum == 0 ? 0.0f : part.sum * exp2_real((part.reference - top) * exponent);
  }
  FOVEAL_DEVICE float total(float top) const {
    float total = 0;
    for (int split = lane_id(); split < args.parts.kv_splits.value; split += kWarp) total += weight(split, top);
#pragma unroll
    for (int other = kWarp / 2; other > 0; other /= 2) total += __shfl_xor_sync(~0u, total, other);
    return total;
  }

  /// Adds this warp's splits, in their order. A split without weight is not read: nothing may have been written there.
  FOVEAL_DEVICE void add_to(float4 (&sum)[kColumnSteps], float top, float inverse) const {
    for (int begin = first; begin < args.parts.kv_splits.value; begin += kWarp * step) {
      const float weight_of_lane = weight(begin + step * lane_id(), top) * inverse;
      for (int turn = 0; turn < kWarp && begin + step * turn < args.parts.kv_splits.value; turn += kLoads) {
        float4 loaded[kLoads][kColumnSteps];
        float weights[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          weights[i] = __shfl_sync(~0u, weight_of_lane, turn + i);
#pragma unroll
          for (int c = 0; c < kColumnSteps; ++c) {
            const int column = kLaneColumns * (kWarp * c + lane_id());
            loaded[i][c] = make_float4(0, 0, 0, 0);
            if (weights[i] != 0 && column < kProblem.head_dim_v) {
              const i64 from = (begin + step * (turn + i)) * args.split_rows + row;
              loaded[i][c] = *reinterpret_cast<const float4*>(args.split_out + from * kProblem.head_dim_v + column);
            }
          }
        }
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
#pragma unroll
          for (int c = 0; c < kColumnSteps; ++c) {
            sum[c].x = fmaf(weights[i], loaded[i][c].x, sum[c].x);
            sum[c].y = fmaf(weights[i], loaded[i][c].y, sum[c].y);
            sum[c].z = fmaf(weights[i], loaded[i][c].z, sum[c].z);
            sum[c].w = fmaf(weights[i], loaded[i][c].w, sum[c].w);
          }
        }
      }
    }
  }
};

}  // namespace foveal::device

/// Grid: (queries of the longest sequence * heads / rows of a CTA, sequences); args.merge_warps warps share a row.
extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 2)
    merge_splits_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  using namespace foveal::device;
  await_previous_launch();
  const AttentionArgs& attention = args.attention;
  const Sequence sequence = find_sequence(attention, blockIdx.y);
  const int warps = args.merge_warps, part = warp_id() % warps, lane = lane_id();
  const int row = (blockIdx.x * kMergeWarps + warp_id()) / warps;
  const int query = row / attention.heads_q, head = row % attention.heads_q;
  const bool exists = query < sequence.len_q;
  const int token = (kProblem.varlen ? sequence.first_q : static_cast<int>(blockIdx.y) * attention.seqlen_q) + query;
  const SplitRows splits{args, static_cast<i64>(token) * attention.heads_q + head, part, warps, *args.split_exponent};

  float4 sum[kColumnSteps] = {};
  float lse = 0;
  if (exists) {
    const float top = splits.top(), total = splits.total(top);
    OnlineSoftmax softmax{{top, top}, {total / 4, total / 4}};  // of one of four lanes
    float inverses[2], row_lse[2];
    if constexpr (kHasSink) {
      const float sink = sink_logit(head, attention.score);
      softmax.finish(splits.exponent, {sink, sink}, inverses, row_lse);
    } else {
      softmax.finish(splits.exponent, inverses, row_lse);
    }
    lse = row_lse[0];
    splits.add_to(sum, top, inverses[0]);
  }

  __shared__ float4 sums[kMergeWarps][kColumnSteps][kWarp];
  if (warps > 1) {
#pragma unroll
    for (int c = 0; c < kColumnSteps; ++c) sums[warp_id()][c][lane] = sum[c];
    __syncthreads();
  }
  if (!exists || part != 0) return;
  for (int other = 1; other < warps; ++other) {
#pragma unroll
    for (int c = 0; c < kColumnSteps; ++c) {
      const float4 more = sums[warp_id() + other][c][lane];
      sum[c] = make_float4(sum[c].x + more.x, sum[c].y + more.y, sum[c].z + more.z, sum[c].w + more.w);
    }
  }
  const Tensor& out = attention.out;
  u16* to = static_cast<u16*>(out.data) + blockIdx.y * out.batch + head * out.head + (sequence.first_q + query) * out.seq;
#pragma unroll
  for (int c = 0; c < kColumnSteps; ++c) {
    const int column = kLaneColumns * (kWarp * c + lane);
    if (column < kProblem.head_dim_v)
      *reinterpret_cast<uint2*>(to + column) = make_uint2(pack(Element{}, sum[c].x, sum[c].y), pack(Element{}, sum[c].z, sum[c].w));
  }
  const Rows& rows = attention.lse;
  if (lane == 0 && rows.data != nullptr)
    static_cast<float*>(rows.data)[blockIdx.y * rows.batch + head * rows.head + (sequence.first_q + query) * rows.seq] = lse;
}
