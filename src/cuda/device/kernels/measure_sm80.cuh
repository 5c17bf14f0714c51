// After delta_sm80: recomputes the largest score and the log of the sum of far rows (score/far_row.cuh), and adds their gradients of the
// sink. One block for each tile of queries; most find no far row.
//  shared memory: q | stages x (k | v) | kept
//
// config.cuh: kProblem, kConfig (a PortableConfig).
#include "score/exact_sum.cuh"
#include "score/far_row.cuh"
#include "tile/query_tile.cuh"

namespace foveal::device {

constexpr int kN8 = kBlockKv / 8;

FOVEAL_DEVICE void measure_tile(const AttentionArgs& args, Position at, int q_local, int kv_local, R exponent, R (&s)[kRowTiles][kN8][4],
                                RowMeasure<R> (&measures)[kRowTiles][2]) {
  const int t = lane_id() % 4;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kN8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = q_local + 16 * m + e / 2 * 8, col = kv_local + 8 * n + 2 * t + e % 2;
        at.q = int(args.q_offset) + min(row, at.seqlen_q - 1);
        at.kv = int(args.kv_offset) + min(col, at.seqlen_kv - 1);
        R x = s[m][n][e];
        if constexpr (kScaleBefore) x *= R(args.scale);
        if constexpr (kHasScore) x = score_forward(x, at, args.score);
        bool keep = col < at.seqlen_kv;
        if constexpr (kHasMask) keep = keep && mask_keep(at, args.score);
        if (keep) measures[m][e / 2].add(score_of(args, x), exponent);
      }
    }
  }
}

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, kConfig.ctas)
    measure_sm80(const __grid_constant__ foveal::device::AttentionArgs args) {
  using namespace foveal::device;
  extern __shared__ uint4 shared[];
  constexpr ForwardSm80Layout kShared(sm80_shape(), false);
  static_assert(kShared.bytes == kSharedBytes, "the host set aside another size");
  const auto q_smem = tile_at<kBlockQ, kHeadDimPadded>(shared, kShared.query);
  const auto k_smem = tile_at<kConfig.stages * kBlockKv, kHeadDimPadded>(shared, kShared.key);
  const auto v_smem = tile_at<kConfig.stages * kBlockKv, kHeadDimVPadded>(shared, kShared.value);
  unsigned char* kept = shared_at<unsigned char>(shared, kShared.kept);

  const QueryTile queries(args, int(blockIdx.x));
  if (!queries.exists()) return;
  const Sequence& seq = queries.seq;
  const int head = queries.head, row_in_tile = queries.row_in_tile(), q_local = queries.q_local();
  const Position at = queries.at();
  const R* lse = row_values(args.lse, seq.batch, seq.first_q, head);
  bool far = false;
  for (int row = queries.begin + int(threadIdx.x); row < min(queries.begin + kBlockQ, seq.len_q); row += kThreads)
    far = far || is_far(lse[row * args.lse.seq]);
  if (!__syncthreads_or(far)) return;

  const R exponent = score_exponent(args);
  RowMeasure<R> measures[kRowTiles][2];
  const auto load_queries = [&] { queries.rows(args.q).load(q_smem, queries.begin, seq.len_q, kProblem.head_dim); };
  queries.for_each_kv_tile(args, k_smem, v_smem, kept, false, load_queries, [&](int kv_begin, bool, auto keys, auto) {
    R s[kRowTiles][kN8][4];
    multiply_nt<kRowTiles, kBlockKv>(s, q_smem, row_in_tile, keys);
    measure_tile(args, at, q_local, kv_begin, exponent, s, measures);
  });

#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      RowMeasure<R> measure = measures[m][i];
      measure.join_lanes(1, exponent);
      measure.join_lanes(2, exponent);
      const int row = q_local + 16 * m + 8 * i;
      if (lane_id() % 4 != 0 || warp_id() % kConfig.column_split != 0 || row >= seq.len_q || !is_far(lse[row * args.lse.seq])) continue;
      R sink = -R(infinity());
      if constexpr (kHasSink) sink = sink_logit(head, args.score);
      R natural = 0, log_sum = lse[row * args.lse.seq];
      if (measure.sum != 0) {  // else all of its keys are in other shards
        natural = kScaledInExponent ? measure.largest * R(args.scale) : measure.largest;
        log_sum = measure.log_sum(log_sum, natural, sink);
      }
      row_values(args.largest, seq.batch, seq.first_q, head)[row * args.largest.seq] = measure.largest;
      row_values(args.lse2, seq.batch, seq.first_q, head)[row * args.lse2.seq] = kTensorCores<Element> ? log_sum * kLog2eR : log_sum;
      if constexpr (kSinkParam >= 0) {
        const R delta = row_values(args.delta, seq.batch, seq.first_q, head)[row * args.delta.seq];
        const ParamGradient& gradient = args.gradient[kSinkParam];
        ExactSum<kProblem.bin_bits>::add(gradient.bins, gradient.elements, head, -exp_real(sink - natural - log_sum) * delta);
      }
    }
  }
}
