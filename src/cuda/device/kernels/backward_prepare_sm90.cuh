// Before the backward of kernels/backward_sm90.cuh: delta = row sums of dout * out (less dlse), lse in base 2, zeros where dq is summed (and in the turns
// of those who sum it), and the gradient
// of the sink, -exp(sink - lse) delta.
// One group of lanes for each row of statistics, rows beyond the sequence included.
//
// config.cuh: Element, SeqlenIndex; kHeadDim, kHeadDimV (multiples of 8, up to 256), kBlockQ, kVarlen, kReproducible, kBinBits.
#include "schedule/tasks.cuh"
#include "score/exact_sum.cuh"
#include "score/score.cuh"
#include "tile/dq_sum.cuh"

namespace foveal::device {

constexpr int kRowLanes = kHeadDimV > 128 ? 32 : kHeadDimV > 64 ? 16 : 8;
constexpr int kThreads = 256;
constexpr int kRowsPerBlock = kThreads / kRowLanes;

FOVEAL_DEVICE float dot8(uint4 a, uint4 b) {
  const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int shift = i % 2 * 16;
    sum = fmaf(to_real(Element{static_cast<u16>(x[i / 2] >> shift)}), to_real(Element{static_cast<u16>(y[i / 2] >> shift)}), sum);
  }
  return sum;
}

}  // namespace foveal::device

/// Grid: (blocks of rows of the longest sequence, rounded up to 128, query heads, sequences).
extern "C" __global__ void __launch_bounds__(foveal::device::kThreads)
    backward_prepare_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  using namespace foveal::device;
  const AttentionArgs& attention = args.attention;
  const int head = blockIdx.y, batch = blockIdx.z;
  const int row = blockIdx.x * kRowsPerBlock + threadIdx.x / kRowLanes;
  const int lane = threadIdx.x % kRowLanes;
  const Sequence sequence = find_sequence<kVarlen, SeqlenIndex>(attention, batch);
  const bool stands = row < round_up(sequence.len_q, 128);  // in the statistics
  const bool exists = row < sequence.len_q;
  const i64 token = sequence.first_q + row;
  const auto row_value = [&](const Rows& rows) {
    return static_cast<const float*>(rows.data)[batch * rows.batch + head * rows.head + token * rows.seq];
  };

  float sum = 0;
  if (exists && 8 * lane < kHeadDimV) {
    const auto at = [&](const Tensor& tensor) {
      return *reinterpret_cast<const uint4*>(static_cast<const u16*>(tensor.data) + batch * tensor.batch + head * tensor.head + token * tensor.seq +
                                             8 * lane);
    };
    sum = dot8(at(attention.out), at(attention.dout));
  }
#pragma unroll
  for (int step = kRowLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);

  const i64 stat = stat_row<kVarlen>(args, sequence, head) + row;
  float sink_term = 0;
  if (lane == 0 && stands) {
    float lse2 = infinity(), delta = 0;
    if (exists) {
      const float lse = row_value(attention.lse);
      if (lse != -infinity()) {
        lse2 = lse * kLog2e;
        delta = attention.dlse.data == nullptr ? sum : sum - row_value(attention.dlse);
        if constexpr (kSinkParam >= 0) sink_term = -exp2_real(sink_logit(head, attention.score) * kLog2e - lse2) * delta;
      }
    }
    static_cast<float*>(attention.lse2.data)[stat] = lse2;
    static_cast<float*>(attention.delta.data)[stat] = delta;
  }
  if (stands) {
    float4* zeros = reinterpret_cast<float4*>(args.dq_sum + stat * kSumColumns);
#pragma unroll
    for (int i = lane; i < kSumColumns / 4; i += kRowLanes) zeros[i] = make_float4(0, 0, 0, 0);
    if (kReproducible && row % kBlockQ == 0 && lane < kSumCtas) args.dq_turns[stat / kBlockQ * kSumCtas + lane] = 0;
  }
  if constexpr (kSinkParam >= 0) {
    __shared__ float terms[kRowsPerBlock];
    if (lane == 0) terms[threadIdx.x / kRowLanes] = sink_term;
    __syncthreads();
    if (threadIdx.x == 0) {
      float total = 0;
      for (int r = 0; r < kRowsPerBlock; ++r) total += terms[r];
      const ParamGradient& gradient = attention.gradient[kSinkParam];
      ExactSum<kBinBits>::add(gradient.bins, gradient.elements, head, total);
    }
  }
}
