// Forward on mma.sync (FMAs for f32 and f64): a block owns a tile of queries and loops over the kv tiles of its row.
//  shared memory: q | stages x (k | v) | kept      registers, per warp: 16 kRowTiles rows of scores and of the output
// Large head dims split the output columns over column_split warps, which compute the same scores.
//
// config.cuh: kProblem, kConfig (a PortableConfig).
#include "layout/agreed.cuh"
#include "ptx/warp.cuh"
#include "tile/query_tile.cuh"
#include "tile/nonfinite_rows.cuh"

namespace foveal::device {

constexpr int kCols = kHeadDimVPadded / kConfig.column_split;  // of the output, for each warp
static_assert(kBlockQ * kConfig.column_split == QueryTile::kRows * kConfig.warps, "each warp owns its rows, or its columns of them");
constexpr int kN8 = kBlockKv / 8;

struct Softmax {
  R max[kRowTiles][2];
  R sum[kRowTiles][2];
};

/// Online softmax: raw scores -> probabilities relative to the running maximum; rescales the sums and the output.
template <bool kMasked>
FOVEAL_DEVICE void softmax_tile(const AttentionArgs& args, Position at, int q_local, int kv_local, R (&s)[kRowTiles][kN8][4],
                                Softmax& state, R (&acc)[kRowTiles][kCols / 8][4], unsigned char* kept) {
  const int t = lane_id() % 4;
  const R kappa = kScaleBefore ? kLog2eR : R(args.scale) * kLog2eR;
  bool rescale = false;
  R alpha[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = q_local + 16 * m + 8 * i;
      at.q = int(args.q_offset) + min(row, at.seqlen_q - 1);
      R high = state.max[m][i];
#pragma unroll
      for (int n = 0; n < kN8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int col = kv_local + 8 * n + 2 * t + j;
          R& x = s[m][n][2 * i + j];
          at.kv = int(args.kv_offset) + (kMasked ? min(col, at.seqlen_kv - 1) : col);
          if constexpr (kScaleBefore) x *= R(args.scale);
          if constexpr (kHasScore) x = score_forward(x, at, args.score);
          if constexpr (kMasked) {
            bool keep = col < at.seqlen_kv;
            if constexpr (kHasMask) keep = keep && mask_keep(at, args.score);
            if (!keep) x = -infinity();
            if (kHasMask && keep && row < at.seqlen_q) kept[8 * n + 2 * t + j] = 1;
          }
          high = max_real(high, x);
        }
      }
      high = max_real(high, __shfl_xor_sync(~0u, high, 1));
      high = max_real(high, __shfl_xor_sync(~0u, high, 2));
      const R base = high == -infinity() ? R(0) : high;
      const bool far = kTensorCores<Element> && __any_sync(~0u, fabsf(float(base * kappa)) >= kFarReference);
      alpha[m][i] = exp2_real((state.max[m][i] - base) * kappa);
      rescale = rescale || alpha[m][i] != 1;
      state.max[m][i] = high;
      R sum = 0;
#pragma unroll
      for (int n = 0; n < kN8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          R& x = s[m][n][2 * i + j];
          x = kTensorCores<Element> && !far ? exp2_real(fma_real(x, kappa, -base * kappa)) : exp2_real((x - base) * kappa);
          sum += x;
        }
      }
      state.sum[m][i] = state.sum[m][i] * alpha[m][i] + sum;
      if constexpr (kProblem.dropout) {
        const DropoutRow dropout(args.dropout, dropout_row(args, at.batch, at.head));
#pragma unroll
        for (int n = 0; n < kN8; ++n) {
          bool first, second;
          dropout.keep_two(u32(args.q_offset) + row, u32(args.kv_offset) + kv_local + 8 * n + 2 * t, first, second);
          if (!first) s[m][n][2 * i] = 0;
          if (!second) s[m][n][2 * i + 1] = 0;
        }
      }
    }
  }
  if (__any_sync(~0u, rescale)) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kCols / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[m][n][e] *= alpha[m][e / 2];
  }
}

/// Merges the part's lse and output with those there.
FOVEAL_DEVICE void part_epilogue(const AttentionArgs& args, const Sequence& seq, int head, int row_begin, int q_local, int col,
                                 const Softmax& state, R (&acc)[kRowTiles][kCols / 8][4]) {
  double* rows = static_cast<double*>(args.lse.data) + seq.batch * args.lse.batch + head * args.lse.head;
  double lse[kRowTiles][2];
  R previous_weight[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const R sum = quad_sum(state.sum[m][i]);
      const double none = -static_cast<double>(infinity());
      const int row = q_local + 16 * m + 8 * i;
      const double top = static_cast<double>(state.max[m][i]) * (kScaleBefore ? 1.0 : static_cast<double>(R(args.scale)));
      lse[m][i] = sum == 0 ? none : top + static_cast<double>(log_real(sum));
      const double before = args.part.adds_to_q && row < seq.len_q ? rows[row * args.lse.seq] : none;
      const PartWeights<R> weights = join_part<R>(lse[m][i], before, args.part);
      R factor = sum == 0 ? R(0) : weights.part / sum;
      if constexpr (kProblem.dropout) factor *= keep_scale(args);
      previous_weight[m][i] = weights.previous;
#pragma unroll
      for (int n = 0; n < kCols / 8; ++n) acc[m][n][2 * i] *= factor, acc[m][n][2 * i + 1] *= factor;
    }
  }
  __syncthreads();  // all warps that share a row have read its lse
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = q_local + 16 * m + 8 * i;
      if (col == 0 && lane_id() % 4 == 0 && row < seq.len_q) rows[row * args.lse.seq] = lse[m][i];
    }
  add_to_part(args.out, seq, head, row_begin, seq.len_q, col, kProblem.head_dim_v, acc, R(1),
              [&](int m, int i) { return previous_weight[m][i]; });
}

/// Normalises the output and writes lse.
FOVEAL_DEVICE void finish_softmax(const AttentionArgs& args, const Sequence& seq, int head, int q_local, int col, const Softmax& state,
                                  R (&acc)[kRowTiles][kCols / 8][4]) {
  R* lse = args.lse.data ? row_values(args.lse, seq.batch, seq.first_q, head) : nullptr;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const R sum = quad_sum(state.sum[m][i]);
      const R max_natural = kScaleBefore ? state.max[m][i] : state.max[m][i] * R(args.scale);
      R row_lse = sum == 0 ? -infinity() : max_natural + log_real(sum);
      R factor = sum == 0 ? R(0) : R(1) / sum;
      if constexpr (kHasSink) {
        const R sink = sink_logit(head, args.score);
        const R high = sum == 0 ? sink : max_real(max_natural, sink);  // not from lse, which has no digits left for log(sum) in a far row
        const R of_keys = sum == 0 ? R(0) : exp_real(max_natural - high);
        const R joined = high == -infinity() ? R(0) : sum * of_keys + exp_real(sink - high);
        factor = joined == 0 ? R(0) : of_keys / joined;
        row_lse = joined == 0 ? -infinity() : high + log_real(joined);
      }
      if constexpr (kProblem.dropout) factor *= keep_scale(args);
#pragma unroll
      for (int n = 0; n < kCols / 8; ++n) acc[m][n][2 * i] *= factor, acc[m][n][2 * i + 1] *= factor;
      const int row = q_local + 16 * m + 8 * i;
      if (lse && col == 0 && lane_id() % 4 == 0 && row < seq.len_q) lse[row * args.lse.seq] = row_lse;
    }
  }
}

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, kConfig.ctas)
    forward_sm80(const __grid_constant__ foveal::device::AttentionArgs args) {
  using namespace foveal::device;
  extern __shared__ uint4 shared[];
  constexpr ForwardSm80Layout kShared(sm80_shape(), true);
  static_assert(kShared.bytes == kSharedBytes, "the host set aside another size");
  const auto q_smem = tile_at<kBlockQ, kHeadDimPadded>(shared, kShared.query);
  const auto out_smem = tile_at<kBlockQ, kHeadDimVPadded>(shared, kShared.query);
  const auto k_smem = tile_at<kConfig.stages * kBlockKv, kHeadDimPadded>(shared, kShared.key);
  const auto v_smem = tile_at<kConfig.stages * kBlockKv, kHeadDimVPadded>(shared, kShared.value);
  unsigned char* kept = shared_at<unsigned char>(shared, kShared.kept);

  const QueryTile queries(args, int(blockIdx.x));
  if (!queries.exists()) return;
  const Sequence& seq = queries.seq;
  const int row_in_tile = queries.row_in_tile(), q_local = queries.q_local();
  const int col = warp_id() % kConfig.column_split * kCols;
  const Position at = queries.at();
  R acc[kRowTiles][kCols / 8][4];
  clear(acc);
  Softmax state;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int i = 0; i < 2; ++i) state.max[m][i] = -infinity(), state.sum[m][i] = 0;

  const auto load_queries = [&] { queries.rows(args.q).load(q_smem, queries.begin, seq.len_q, kProblem.head_dim); };
  queries.for_each_kv_tile(args, k_smem, v_smem, kept, false, load_queries, [&](int kv_begin, bool masked, auto keys, auto values) {
    R s[kRowTiles][kN8][4];
    multiply_nt<kRowTiles, kBlockKv>(s, q_smem, row_in_tile, keys);
    if (masked) {
      softmax_tile<true>(args, at, q_local, kv_begin, s, state, acc, kept);
      if constexpr (kHasMask) {
        __syncthreads();
        clear_rows_unless(values, kept);
        __syncthreads();
        accumulate_nonfinite_rows<kRowTiles, kCols>(acc, s, values, kept, col);
      }
    } else {
      softmax_tile<false>(args, at, q_local, kv_begin, s, state, acc, kept);
    }
    Operand<Element, kRowTiles, kBlockKv> p;
    to_operand(p, s);
    multiply_rn<kRowTiles, kCols>(acc, p, values, col);
  });

  if constexpr (kProblem.part) return part_epilogue(args, seq, at.head, queries.begin + row_in_tile, q_local, col, state, acc);
  finish_softmax(args, seq, at.head, q_local, col, state, acc);
  put_rows<kRowTiles, kCols / 8>(out_smem, row_in_tile, col, acc, R(1));
  __syncthreads();
  queries.rows(args.out).store(out_smem, queries.begin, seq.len_q, kProblem.head_dim_v);
}
