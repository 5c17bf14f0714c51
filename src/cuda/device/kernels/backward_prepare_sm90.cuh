// Backward preprocessing: delta = rowsum(dout * out) - dlse, lse in base 2, zeroes the dq accumulator (and dq_semaphore), and the gradient
// of the sink, -exp(sink - lse) delta. Far rows have their statistics recomputed (tile/measure_rows.cuh).
// One group of lanes for each row of statistics, padding rows included. Rows kept from part to part (KeptRows) are prepared once, while
// each part measures far rows over its own keys: concurrent parts have their own lse2, largest and far.
//
// config.cuh: kProblem, kConfig (a BackwardRowsConfig).
#include "layout/agreed.cuh"
#include "schedule/tasks.cuh"
#include "score/exact_sum.cuh"
#include "score/far_row.cuh"
#include "score/score.cuh"
#include "tile/dq_sum.cuh"
#include "tile/measure_rows.cuh"

namespace foveal::device {

constexpr int kRowLanes = prepare_row_lanes(kProblem.head_dim_v);
constexpr int kThreads = kPrepareThreads;
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

/// P = 2^((score - largest) * exponent - log2_sum); natural: the largest score in natural units.
struct RowStatistics {
  float largest, log2_sum, natural;
  bool has_keys;
};

/// Called by the whole block if one of its rows is far; the result is meaningful for threads whose row is far.
FOVEAL_DEVICE RowStatistics measure_far_rows(const Sm90Args& args, const Sequence& sequence, int head, int row, float lse) {
  const AttentionArgs& attention = args.attention;
  const Position base{sequence.batch, head, 0, 0, sequence.len_q, sequence.len_kv};
  const float exponent = score_unit({1, args.scale}, base, attention.score) * kLog2e;
  __shared__ RowMeasure<float> measures[kRowsPerBlock < 16 ? 16 : kRowsPerBlock];
#pragma unroll 1
  for (int first = 0; first < kRowsPerBlock; first += 16) {
    const RowMeasure<float> measure = measure_rows<kThreads / kWarp>(args, sequence, head, blockIdx.x * kRowsPerBlock + first, exponent);
    if (threadIdx.x < 16) measures[first + threadIdx.x] = measure;
  }
  __syncthreads();
  const RowMeasure<float> measure = measures[row % kRowsPerBlock];
  if (measure.sum == 0) return {0, lse * kLog2e, 0, false};  // all of its keys are in other shards
  const float sink = kHasSink ? sink_logit(head, attention.score) : -infinity();
  const float natural = measure.largest * (exponent * kLn2);
  return {measure.largest, measure.log_sum(lse, natural, sink) * kLog2e, natural, true};
}

}  // namespace foveal::device

/// Grid: (blocks of rows of the longest sequence, rounded up to kRowStep, query heads, sequences).
extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 5)
    backward_prepare_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  using namespace foveal::device;
  const AttentionArgs& attention = args.attention;
  const int head = blockIdx.y, batch = blockIdx.z;
  const int row = blockIdx.x * kRowsPerBlock + threadIdx.x / kRowLanes;
  const int lane = threadIdx.x % kRowLanes;
  const Sequence sequence = find_sequence(attention, batch);
  const bool has_statistics = row < round_up(sequence.len_q, kRowStep);  // has a row of statistics
  const bool exists = row < sequence.len_q;
  const i64 token = sequence.first_q + row;
  const auto row_value = [&](const Rows& rows) {
    return static_cast<const float*>(rows.data)[batch * rows.batch + head * rows.head + token * rows.seq];
  };

  const bool begins = !kConfig.keeps_rows || args.kept.begins, measures = !kConfig.keeps_rows || args.kept.measures;
  if (kConfig.keeps_rows && measures && threadIdx.x == 0 && blockIdx.x + blockIdx.y + blockIdx.z == 0) {
    const KeptRows& kept = args.kept;
    kept.keys[kept.number] = {
        attention.k, attention.v, attention.kv_offset, attention.seqlen_kv, kept.first_row, kept.first_row + attention.seqlen_q, 0};
  }
  const i64 stat = stat_row<kProblem.varlen>(args, sequence, head) + row;
  const float lse = exists && lane == 0 ? row_value(attention.lse) : -infinity();
  float sum = 0;
  if (begins && exists && 8 * lane < kProblem.head_dim_v) {
    const auto at = [&](const Tensor& tensor) {
      return *reinterpret_cast<const uint4*>(static_cast<const u16*>(tensor.data) + batch * tensor.batch + head * tensor.head +
                                             token * tensor.seq + 8 * lane);
    };
    sum = dot8(at(attention.out), at(attention.dout));
  }
  if (has_statistics) {
    float4* zeros = reinterpret_cast<float4*>(args.dq_sum + stat * kSumColumns);
    if (begins) {
#pragma unroll
      for (int i = lane; i < kSumColumns / 4; i += kRowLanes) zeros[i] = make_float4(0, 0, 0, 0);
    }
    if (kConfig.reproducible && row % kBlockQ == 0 && lane < kSumCtas) args.dq_semaphore[stat / kBlockQ * kSumCtas + lane] = 0;
  }
  sum = warp_sum<kRowLanes>(sum);

  const float unmeasured = lse == -infinity() ? infinity() : lse * kLog2e;
  RowStatistics statistics{0, unmeasured, 0, false};
  const bool some_far = measures && __syncthreads_or(is_far(lse));
  if (some_far) {
    const RowStatistics measured = measure_far_rows(args, sequence, head, row, lse);
    if (is_far(lse)) statistics = measured;
  }
  float sink_term = 0;
  if (lane == 0 && has_statistics) {
    const bool writes = begins || statistics.has_keys;
    float delta = 0;
    if (lse != -infinity()) {
      delta = attention.dlse.data == nullptr ? sum : sum - row_value(attention.dlse);
      if constexpr (kSinkParam >= 0) {
        const float sink = sink_logit(head, attention.score);
        sink_term = -exp2_real((sink - statistics.natural) * kLog2e - statistics.log2_sum) * delta;
      }
    }
    if (writes) static_cast<float*>(attention.lse2.data)[stat] = statistics.log2_sum;
    if (writes) static_cast<float*>(attention.largest.data)[stat] = statistics.largest;
    if (begins) static_cast<float*>(attention.delta.data)[stat] = delta;
    if (row % 8 == 0 && (begins || some_far)) args.far[stat / 8] = some_far;
    if (kConfig.keeps_rows && begins) {
      const i64 there = stat + static_cast<i64>(kRowStep) * args.kept.other_stream;
      static_cast<float*>(attention.lse2.data)[there] = unmeasured;
      static_cast<float*>(attention.largest.data)[there] = 0;
      if (row % 8 == 0) args.far[there / 8] = 0;
    }
  }
  if constexpr (kSinkParam >= 0) {
    __shared__ float terms[kRowsPerBlock];
    if (lane == 0) terms[threadIdx.x / kRowLanes] = sink_term;
    __syncthreads();
    if (threadIdx.x == 0) {
      float total = 0;
      for (int r = 0; r < kRowsPerBlock; ++r) total += terms[r];
      const ParamGradient& gradient = attention.gradient[kSinkParam];
      ExactSum<kProblem.bin_bits>::add(gradient.bins, gradient.elements, head, total);
    }
  }
}
