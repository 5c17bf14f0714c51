#pragma once
// Backward for a tile of queries: dq, and the gradients of the score's parameters. The block loops over the kv tiles of its row:
//  s = q k^T;  dp = dout v^T;  p = exp(s' - lse);  ds' = p (dp - delta);  ds = ds' ds'/ds;  dq += ds k
//  shared memory: q | dout | kConfig.stages x (k | v) | kept | terms      registers, per warp: 16 kRowTiles rows of s, dp and dq
#include "score/gradients.cuh"
#include "tile/query_tile.cuh"
#include "tile/nonfinite_rows.cuh"

namespace foveal::device {

constexpr bool kCollects = kReads > 0 && kConfig.column_split == 1;
constexpr bool kStagesTerms = kCollects && staged_reads();
constexpr Sm80Shape kDqShape = sm80_shape(kStagesTerms);
constexpr DqSm80Layout kDqShared(kDqShape);

/// s, dp -> p and ds' for rows of queries. On return s holds scaled raw scores, dp the gradient of the modified ones.
template <bool kMasked>
FOVEAL_DEVICE void dq_scores(const AttentionArgs& args, Position at, int q_local, int kv_local, R (&s)[kRowTiles][kBlockKv / 8][4],
                             R (&dp)[kRowTiles][kBlockKv / 8][4], const RowStatistics (&rows)[kRowTiles][2], const R (&delta)[kRowTiles][2],
                             unsigned char* kept) {
  const int t = lane_id() % 4;
  const DropoutRow dropout(args.dropout, dropout_row(args, at.batch, at.head));
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = q_local + 16 * m + 8 * i;
      at.q = int(args.q_offset) + min(row, at.seqlen_q - 1);
#pragma unroll
      for (int n = 0; n < kBlockKv / 8; ++n) {
        bool kept_pair[2] = {true, true};
        if constexpr (kProblem.dropout) {
          dropout.keep_two(u32(args.q_offset) + row, u32(args.kv_offset) + kv_local + 8 * n + 2 * t, kept_pair[0], kept_pair[1]);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int col = kv_local + 8 * n + 2 * t + j;
          at.kv = int(args.kv_offset) + (kMasked ? min(col, at.seqlen_kv - 1) : col);
          R& x = s[m][n][2 * i + j];
          R& y = dp[m][n][2 * i + j];
          if constexpr (kScaleBefore) x *= R(args.scale);
          R modified = x;
          if constexpr (kHasScore) modified = score_forward(x, at, args.score);
          const R p = probability_of(args, modified, rows[m][i]);
          if constexpr (kProblem.dropout) y = kept_pair[j] ? y * keep_scale(args) : R(0);
          R gradient = p * (y - delta[m][i]);
          if constexpr (kMasked) {
            bool keep = col < at.seqlen_kv && row < at.seqlen_q;
            if constexpr (kHasMask) keep = keep && mask_keep(at, args.score);
            if (!keep) gradient = 0;
            if (kHasMask && keep) kept[8 * n + 2 * t + j] = 1;
          }
          y = gradient;
        }
      }
    }
  }
}

/// The saved statistics of this thread's rows; rows beyond the end get neutral ones.
FOVEAL_DEVICE void load_statistics(const AttentionArgs& args, const Sequence& seq, int head, int q_local,
                                   RowStatistics (&rows)[kRowTiles][2], R (&delta)[kRowTiles][2]) {
  const R* lse2_rows = row_values(args.lse2, seq.batch, seq.first_q, head);
  const R* largest_rows = row_values(args.largest, seq.batch, seq.first_q, head);
  const R* delta_rows = row_values(args.delta, seq.batch, seq.first_q, head);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = q_local + 16 * m + 8 * i;
      const bool exists = row < seq.len_q;
      rows[m][i] = {exists ? largest_rows[row * args.largest.seq] : R(0), exists ? lse2_rows[row * args.lse2.seq] : R(infinity())};
      delta[m][i] = exists ? delta_rows[row * args.delta.seq] : R(0);
    }
  }
}

FOVEAL_DEVICE void dq_tile(const AttentionArgs& args, int task, void* shared) {
  constexpr int kCols = kHeadDimPadded / kConfig.column_split;  // of dq, for each warp
  constexpr PairsSm80Layout kShared = kDqShared.pairs;
  const auto q_smem = tile_at<kBlockQ, kHeadDimPadded>(shared, kShared.query);
  const auto dout_smem = tile_at<kBlockQ, kHeadDimVPadded>(shared, kShared.dout);
  const auto k_smem = tile_at<kConfig.stages * kBlockKv, kHeadDimPadded>(shared, kShared.key);
  const auto v_smem = tile_at<kConfig.stages * kBlockKv, kHeadDimVPadded>(shared, kShared.value);
  unsigned char* kept = shared_at<unsigned char>(shared, kShared.kept);
  R* scratch = shared_at<R>(shared, kDqShared.scratch);
  const TermTile<kBlockQ, kBlockKv> terms{shared_at<R>(shared, kDqShared.terms)};

  const QueryTile queries(args, task);
  if (!queries.exists()) return;
  const Sequence& seq = queries.seq;
  const int head = queries.head, row_in_tile = queries.row_in_tile(), q_local = queries.q_local();
  const int col = warp_id() % kConfig.column_split * kCols;
  const Position at = queries.at();
  RowStatistics rows[kRowTiles][2];
  R delta[kRowTiles][2];
  load_statistics(args, seq, head, q_local, rows, delta);
  R acc[kRowTiles][kCols / 8][4];
  clear(acc);
  ReadSums<kRowTiles> sums;
  sums.clear();

  const auto load_queries = [&] {
    queries.rows(args.q).load(q_smem, queries.begin, seq.len_q, kProblem.head_dim);
    queries.rows(args.dout).load(dout_smem, queries.begin, seq.len_q, kProblem.head_dim_v);
  };
  const bool short_rows = kCollects && queries.begin + kBlockQ > seq.len_q;  // missing queries contribute nothing to parameters
  queries.for_each_kv_tile(args, k_smem, v_smem, kept, short_rows, load_queries, [&](int kv_begin, bool masked, auto keys, auto values) {
    R s[kRowTiles][kBlockKv / 8][4], dp[kRowTiles][kBlockKv / 8][4];
    multiply_nt<kRowTiles, kBlockKv>(s, q_smem, row_in_tile, keys);
    multiply_nt<kRowTiles, kBlockKv>(dp, dout_smem, row_in_tile, values);
    if (masked) {
      dq_scores<true>(args, at, q_local, kv_begin, s, dp, rows, delta, kept);
      if constexpr (kHasMask) {
        __syncthreads();
        clear_rows_unless(keys, kept);
        __syncthreads();
      }
    } else {
      dq_scores<false>(args, at, q_local, kv_begin, s, dp, rows, delta, kept);
    }
    if constexpr (kCollects) {
      if constexpr (!kScaleBefore) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
          for (int n = 0; n < kBlockKv / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[m][n][e] *= R(args.scale);
      }
      collect_read<0, kThreads, kBlockQ, kBlockKv, kRowTiles>(args, at, queries.begin, kv_begin, row_in_tile, s, dp, sums, terms);
    }
    if constexpr (kWanted.dq) {
      if constexpr (kHasScore) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int n = 0; n < kBlockKv / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              Position here = at;
              here.q = int(args.q_offset) + min(q_local + 16 * m + e / 2 * 8, at.seqlen_q - 1);
              here.kv = int(args.kv_offset) + min(kv_begin + 8 * n + 2 * (lane_id() % 4) + e % 2, at.seqlen_kv - 1);
              R& y = dp[m][n][e];
              y = y == 0 ? R(0) : y * score_backward(s[m][n][e], here, args.score);
            }
          }
        }
      }
      if constexpr (kHasMask) {
        if (masked) accumulate_nonfinite_rows<kRowTiles, kCols>(acc, dp, keys, kept, col);
      }
      Operand<Element, kRowTiles, kBlockKv> ds;
      to_operand(ds, dp);
      multiply_rn<kRowTiles, kCols>(acc, ds, keys, col);
    }
  });

  if constexpr (kCollects) finish_reads<0, kConfig.warps, kRowTiles>(args, at, q_local, sums, scratch);
  if constexpr (kWanted.dq) {
    if constexpr (kProblem.part) {
      add_to_part(args.dq, seq, head, queries.begin + row_in_tile, seq.len_q, col, kProblem.head_dim, acc, R(args.scale),
                  [&](int, int) { return args.part.adds_to_q ? R(1) : R(0); });
      return;
    }
    put_rows<kRowTiles, kCols / 8>(q_smem, row_in_tile, col, acc, R(args.scale));
    __syncthreads();
    queries.rows(args.dq).store(q_smem, queries.begin, seq.len_q, kProblem.head_dim);
  }
}

}  // namespace foveal::device
