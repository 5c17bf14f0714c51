// Backward preprocessing, one warp for each query row: delta = sum(dout * out) - dlse; lse as the kernels want it, +inf for rows without
// keys; and the gradient of the sink, -exp(sink - lse) delta. Far rows are left to kernels/measure_sm80.cuh.
//
// config.cuh: kProblem, kConfig (a PortableConfig).
#include "ptx/warp.cuh"
#include "score/exact_sum.cuh"
#include "score/far_row.cuh"
#include "tile/problem.cuh"

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads)
    delta_sm80(const __grid_constant__ foveal::device::AttentionArgs args) {
  using namespace foveal::device;
  __shared__ R sink_terms[kConfig.warps];
  const int tile_q = int(blockIdx.x) % args.tiles_q;
  const int head = int(blockIdx.x) / args.tiles_q % args.heads_q;
  const Sequence seq = find_sequence(args, int(blockIdx.x) / args.tiles_q / args.heads_q);
  const HeadView out(args.out, seq.batch, seq.first_q, head);
  const HeadView dout(args.dout, seq.batch, seq.first_q, head);
  const R* lse = row_values(args.lse, seq.batch, seq.first_q, head);
  R sink_term = 0;
  for (int row = tile_q * kBlockQ + warp_id(); row < min((tile_q + 1) * kBlockQ, seq.len_q); row += kConfig.warps) {
    R sum = 0;
    const R row_lse = lse[row * args.lse.seq];
    const bool empty = row_lse == -infinity();
    if (!empty) {
      for (int d = lane_id(); d < kProblem.head_dim_v; d += kWarp) {
        sum = fma_real(to_real(out.data[row * out.row_stride + d * out.col_stride]),
                       to_real(dout.data[row * dout.row_stride + d * dout.col_stride]), sum);
      }
    }
    sum = warp_sum(sum);
    if (args.dlse.data && !empty) sum -= row_values(args.dlse, seq.batch, seq.first_q, head)[row * args.dlse.seq];
    if (lane_id() == 0) {
      const R scaled = kTensorCores<Element> ? row_lse * kLog2eR : row_lse;
      row_values(args.delta, seq.batch, seq.first_q, head)[row * args.delta.seq] = sum;
      row_values(args.lse2, seq.batch, seq.first_q, head)[row * args.lse2.seq] = empty ? R(infinity()) : scaled;
      row_values(args.largest, seq.batch, seq.first_q, head)[row * args.largest.seq] = 0;
      if constexpr (kHasSink) {
        if (!empty && !is_far(row_lse)) sink_term -= exp_real(sink_logit(head, args.score) - row_lse) * sum;
      }
    }
  }
  if constexpr (kSinkParam >= 0) {
    if (lane_id() == 0) sink_terms[warp_id()] = sink_term;
    __syncthreads();
    if (threadIdx.x == 0) {
      R sum = 0;
      for (int w = 0; w < kConfig.warps; ++w) sum += sink_terms[w];
      const ParamGradient& gradient = args.gradient[kSinkParam];
      ExactSum<kProblem.bin_bits>::add(gradient.bins, gradient.elements, head, sum);
    }
  }
}
