// After a forward pass whose tasks took a part of the keys each: one result of theirs, the mean of their outputs with the weights sum 2^((reference - largest) exponent),
// where a sink counts as one more part, of zeros. Their lse would not do: far from 0 it has no digits left for the sum.
//
// config.cuh: Element, SeqlenIndex; kHeadDimV (a multiple of 8), kVarlen.
#include "element.cuh"
#include "schedule/tasks.cuh"
#include "score/score.cuh"
#include "softmax/online.cuh"

#include "config.cuh"

namespace foveal::device {

constexpr int kThreads = 128;
constexpr int kAtOnce = 4;  // columns of a lane

}  // namespace foveal::device

/// Grid: (queries of the longest sequence * heads / 4, sequences); a warp does one row.
extern "C" __global__ void __launch_bounds__(foveal::device::kThreads)
    merge_splits_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  using namespace foveal::device;
  const AttentionArgs& attention = args.attention;
  const Sequence sequence = find_sequence<kVarlen, SeqlenIndex, kKeyRows, SeqlenKvIndex>(attention, blockIdx.y);
  const int lane = lane_id(), row = blockIdx.x * (kThreads / kWarp) + warp_id();
  const int query = row / attention.heads_q, head = row % attention.heads_q;
  if (query >= sequence.len_q) return;
  const int token = (kVarlen ? sequence.first_q : static_cast<int>(blockIdx.y) * attention.seqlen_q) + query;
  const i64 from = static_cast<i64>(token) * attention.heads_q + head;

  const float exponent = *args.split_exponent;
  const auto part_of = [&](int split) {
    return split < args.splits.value ? args.split_softmax[split * args.split_rows + from] : SplitRow{-infinity(), 0};
  };
  float top = -infinity();
  for (int split = lane; split < args.splits.value; split += kWarp) top = fmaxf(top, part_of(split).reference);
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, other));
  const auto weight_of = [&](int split) {
    const SplitRow part = part_of(split);
    return part.sum == 0 ? 0.0f : part.sum * exp2_real((part.reference - top) * exponent);
  };
  float total = 0;
  for (int split = lane; split < args.splits.value; split += kWarp) total += weight_of(split);
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) total += __shfl_xor_sync(~0u, total, other);
  OnlineSoftmax softmax{{top, top}, {total / 4, total / 4}};  // of one of four lanes
  float inverses[2], lse[2];
  if constexpr (kHasSink) {
    const float sink = sink_logit(head, attention.score);
    softmax.finish(exponent, {sink, sink}, inverses, lse);
  } else {
    softmax.finish(exponent, inverses, lse);
  }
  const float inverse = inverses[0];

  const Tensor& out = attention.out;
  u16* to = static_cast<u16*>(out.data) + blockIdx.y * out.batch + head * out.head + (sequence.first_q + query) * out.seq;
#pragma unroll
  for (int first = 0; first < kHeadDimV; first += kAtOnce * kWarp) {
    const int column = first + kAtOnce * lane;
    float sum[kAtOnce] = {};
    float weight = 0;  // of the lane's split, of 32
    for (int split = 0; split < args.splits.value; ++split) {
      if (split % kWarp == 0) weight = weight_of(split + lane) * inverse;
      const float times = __shfl_sync(~0u, weight, split % kWarp);
      if (column >= kHeadDimV || times == 0) continue;
      const float4 part = *reinterpret_cast<const float4*>(args.split_out + (split * args.split_rows + from) * kHeadDimV + column);
      sum[0] = fmaf(times, part.x, sum[0]);
      sum[1] = fmaf(times, part.y, sum[1]);
      sum[2] = fmaf(times, part.z, sum[2]);
      sum[3] = fmaf(times, part.w, sum[3]);
    }
    if (column < kHeadDimV) {
      *reinterpret_cast<uint2*>(to + column) = make_uint2(pack(Element{}, sum[0], sum[1]), pack(Element{}, sum[2], sum[3]));
    }
  }
  const Rows& rows = attention.lse;
  if (lane == 0 && rows.data != nullptr) {
    static_cast<float*>(rows.data)[blockIdx.y * rows.batch + head * rows.head + (sequence.first_q + query) * rows.seq] = lse[0];
  }
}
