#pragma once
// Backward for a tile of keys: dk and dv. The block loops over the query tiles of each query head of the group, with scores transposed, so
// that p^T and ds^T are already left operands:
//  s^T = k q^T;  dp^T = v dout^T;  dv += p^T dout;  dk += ds^T q
//  shared memory: k | v | kConfig.stages x (q | dout | lse2 | largest | delta) | nonfinite
//  registers, per warp: 16 kRowTiles rows of s^T, dp^T and its columns of dk, dv
// Large head dims split the columns of dk and dv over kConfig.column_split warps, which compute the same scores.
#include "tile/nonfinite_rows.cuh"
#include "tile/shared_sm80.cuh"

namespace foveal::device {

constexpr DkdvSm80Layout kDkdvShared(sm80_shape());

/// s^T, dp^T -> p^T (with dropout applied, as dv needs it) and ds^T.
template <bool kMasked>
FOVEAL_DEVICE void dkdv_scores(const AttentionArgs& args, Position at, int q_local, int kv_local, R (&s)[kRowTiles][kBlockQ / 8][4],
                               R (&dp)[kRowTiles][kBlockQ / 8][4], const R* lse2, const R* largest, const R* delta) {
  const int t = lane_id() % 4;
  const DropoutRow dropout(args.dropout, dropout_row(args, at.batch, at.head));
#pragma unroll
  for (int n = 0; n < kBlockQ / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int in_tile = 8 * n + 2 * t + j;
      const int col = q_local + in_tile;
      const R row_delta = delta[in_tile];
      at.q = int(args.q_offset) + (kMasked ? min(col, at.seqlen_q - 1) : col);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = kv_local + 16 * m + 8 * i;
          at.kv = int(args.kv_offset) + min(row, at.seqlen_kv - 1);
          R& x = s[m][n][2 * i + j];
          R& y = dp[m][n][2 * i + j];
          if constexpr (kScaleBefore) x *= R(args.scale);
          R modified = x;
          if constexpr (kHasScore) modified = score_forward(x, at, args.score);
          const R p = probability_of(args, modified, {largest[in_tile], lse2[in_tile]});
          R dropped = p;
          if constexpr (kProblem.dropout) {
            const bool keep = dropout.keep(u32(args.q_offset) + col, u32(args.kv_offset) + row);
            dropped = keep ? p * keep_scale(args) : R(0);
            y = keep ? y * keep_scale(args) : R(0);
          }
          R gradient = p * (y - row_delta);
          if constexpr (kMasked) {
            bool keep = col < at.seqlen_q && row < at.seqlen_kv;
            if constexpr (kHasMask) keep = keep && mask_keep(at, args.score);
            if (!keep) gradient = 0, dropped = 0;
          }
          if constexpr (kHasMask && kHasScore) {  // such queries are cleared below, and a score_mod of 0 may be NaN
            if (lse2[in_tile] == R(infinity())) gradient = 0, dropped = 0;
          }
          if constexpr (kHasScore) gradient = gradient == 0 ? R(0) : gradient * score_backward(x, at, args.score);
          x = dropped;
          y = gradient;
        }
      }
    }
  }
}

/// Long: its phases share register fragments.
FOVEAL_DEVICE void dkdv_tile(const AttentionArgs& args, int task, void* shared) {
  constexpr int kRows = 16 * kRowTiles;
  constexpr int kColsK = kHeadDimPadded / kConfig.column_split, kColsV = kHeadDimVPadded / kConfig.column_split;
  constexpr DkdvSm80Layout kShared = kDkdvShared;
  const auto k_smem = tile_at<kBlockKv, kHeadDimPadded>(shared, kShared.key);
  const auto v_smem = tile_at<kBlockKv, kHeadDimVPadded>(shared, kShared.value);
  const auto q_smem = tile_at<kConfig.stages * kBlockQ, kHeadDimPadded>(shared, kShared.query);
  const auto dout_smem = tile_at<kConfig.stages * kBlockQ, kHeadDimVPadded>(shared, kShared.dout);
  R* lse2_smem = shared_at<R>(shared, kShared.lse2);
  R* largest_smem = shared_at<R>(shared, kShared.largest);
  R* delta_smem = shared_at<R>(shared, kShared.delta);
  unsigned char* nonfinite = shared_at<unsigned char>(shared, kShared.nonfinite);

  const int tile_kv = task % args.tiles_kv;
  const int head_kv = task / args.tiles_kv % args.heads_kv;
  const Sequence seq = find_sequence(args, task / args.tiles_kv / args.heads_kv);
  const int kv_begin = tile_kv * kBlockKv;
  if (kv_begin >= seq.len_kv) return;

  const HeadView k(args.k, seq.batch, seq.first_kv, head_kv);
  const HeadView v(args.v, seq.batch, seq.first_kv, head_kv);
  const auto q_stage = [&](int stage) { return SharedTile<Element, kBlockQ, kHeadDimPadded>{q_smem.row(stage * kBlockQ)}; };
  const auto dout_stage = [&](int stage) { return SharedTile<Element, kBlockQ, kHeadDimVPadded>{dout_smem.row(stage * kBlockQ)}; };
  const auto load = [&](int head, int tile, int stage) {
    const int row = tile * kBlockQ;
    HeadView(args.q, seq.batch, seq.first_q, head).load(q_stage(stage), row, seq.len_q, kProblem.head_dim);
    HeadView(args.dout, seq.batch, seq.first_q, head).load(dout_stage(stage), row, seq.len_q, kProblem.head_dim_v);
    const R* lse2 = row_values(args.lse2, seq.batch, seq.first_q, head);
    const R* largest = row_values(args.largest, seq.batch, seq.first_q, head);
    const R* delta = row_values(args.delta, seq.batch, seq.first_q, head);
    for (int i = threadIdx.x; i < kBlockQ; i += kThreads) {
      const bool valid = row + i < seq.len_q;
      const i64 from = valid ? row + i : 0;
      copy_async<sizeof(R)>(lse2_smem + stage * kBlockQ + i, lse2 + from * args.lse2.seq, valid);
      copy_async<sizeof(R)>(largest_smem + stage * kBlockQ + i, largest + from * args.largest.seq, valid);
      copy_async<sizeof(R)>(delta_smem + stage * kBlockQ + i, delta + from * args.delta.seq, valid);
    }
  };

  const int row_in_tile = warp_id() / kConfig.column_split * kRows;
  const int col_k = warp_id() % kConfig.column_split * kColsK, col_v = warp_id() % kConfig.column_split * kColsV;
  const int kv_local = kv_begin + row_in_tile + lane_id() / 4;
  R dk_acc[kRowTiles][kColsK / 8][4], dv_acc[kRowTiles][kColsV / 8][4];
  clear(dk_acc);
  clear(dv_acc);

  int head = head_kv * args.group_size;
  const int head_end = head + args.group_size;
  const int limit = divide_up(seq.len_q, kBlockQ);
  TileCursor cursor(args.runs_transposed, seq.batch, head, tile_kv, limit);
  const auto advance = [&] {
    while (!cursor.next()) {
      if (++head == head_end) return false;
      cursor = TileCursor(args.runs_transposed, seq.batch, head, tile_kv, limit);
    }
    return true;
  };

  bool more = advance();
  k.load(k_smem, kv_begin, seq.len_kv, kProblem.head_dim);
  v.load(v_smem, kv_begin, seq.len_kv, kProblem.head_dim_v);
  if (more) load(head, cursor.tile, 0);
  copy_commit();
  for (int stage = 0; more; stage = (stage + 1) % kConfig.stages) {
    const int q_begin = cursor.tile * kBlockQ;
    const bool masked = !cursor.full || q_begin + kBlockQ > seq.len_q;
    const Position at{seq.batch, head, 0, 0, seq.len_q, seq.len_kv};
    more = advance();
    if constexpr (kConfig.stages == 2) {
      if (more) load(head, cursor.tile, 1 - stage);
      copy_commit();
    }
    copy_wait<kConfig.stages - 1>();
    __syncthreads();

    const R* lse2 = lse2_smem + stage * kBlockQ;
    if constexpr (kHasMask) {
      // Queries without keys contribute nothing, even if their memory holds NaN.
      bool found = false;
      for (int i = threadIdx.x; i < kBlockQ; i += kThreads) found = found || lse2[i] == R(infinity());
      if (__syncthreads_or(found)) {
        for (int i = threadIdx.x; i < kBlockQ * (kHeadDimPadded + kHeadDimVPadded); i += kThreads) {
          const int row = i / (kHeadDimPadded + kHeadDimVPadded), col = i % (kHeadDimPadded + kHeadDimVPadded);
          if (lse2[row] != R(infinity())) continue;
          Element& x = col < kHeadDimPadded ? q_stage(stage).row(row)[col] : dout_stage(stage).row(row)[col - kHeadDimPadded];
          x = Element{};
        }
        __syncthreads();
      }
    }
    R s[kRowTiles][kBlockQ / 8][4], dp[kRowTiles][kBlockQ / 8][4];
    multiply_nt<kRowTiles, kBlockQ>(s, k_smem, row_in_tile, q_stage(stage));
    multiply_nt<kRowTiles, kBlockQ>(dp, v_smem, row_in_tile, dout_stage(stage));
    const R* largest = largest_smem + stage * kBlockQ;
    const R* delta = delta_smem + stage * kBlockQ;
    if (masked) {
      dkdv_scores<true>(args, at, q_begin, kv_local, s, dp, lse2, largest, delta);
    } else {
      dkdv_scores<false>(args, at, q_begin, kv_local, s, dp, lse2, largest, delta);
    }
    Operand<Element, kRowTiles, kBlockQ> left;
    if constexpr (kWanted.dv) {
      if constexpr (kHasMask) {
        if (masked) accumulate_nonfinite_rows<kRowTiles, kColsV>(dv_acc, s, dout_stage(stage), nonfinite, col_v);
      }
      to_operand(left, s);
      multiply_rn<kRowTiles, kColsV>(dv_acc, left, dout_stage(stage), col_v);
    }
    if constexpr (kWanted.dk) {
      if constexpr (kHasMask) {
        if (masked) accumulate_nonfinite_rows<kRowTiles, kColsK>(dk_acc, dp, q_stage(stage), nonfinite, col_k);
      }
      to_operand(left, dp);
      multiply_rn<kRowTiles, kColsK>(dk_acc, left, q_stage(stage), col_k);
    }
    __syncthreads();
    if constexpr (kConfig.stages == 1) {
      if (more) load(head, cursor.tile, 0);
      copy_commit();
    }
  }
  copy_wait<0>();
  __syncthreads();

  if constexpr (kProblem.part) {
    const auto previous_weight = [&](int, int) { return args.part.adds_to_kv ? R(1) : R(0); };
    const int row = kv_begin + row_in_tile;
    if constexpr (kWanted.dk)
      add_to_part(args.dk, seq, head_kv, row, seq.len_kv, col_k, kProblem.head_dim, dk_acc, R(args.scale), previous_weight);
    if constexpr (kWanted.dv)
      add_to_part(args.dv, seq, head_kv, row, seq.len_kv, col_v, kProblem.head_dim_v, dv_acc, R(1), previous_weight);
    return;
  }
  if constexpr (kProblem.key_rows == KeyRows::gathered) {
    const auto nothing = [](int, int) { return R(0); };
    const int row = int(seq.first_kv) + kv_begin + row_in_tile, end = int(seq.first_kv) + seq.len_kv;
    if constexpr (kWanted.dk) add_to_part(args.dk, seq, head_kv, row, end, col_k, kProblem.head_dim, dk_acc, R(args.scale), nothing);
    if constexpr (kWanted.dv) add_to_part(args.dv, seq, head_kv, row, end, col_v, kProblem.head_dim_v, dv_acc, R(1), nothing);
    return;
  }
  if constexpr (kWanted.dk) put_rows<kRowTiles, kColsK / 8>(k_smem, row_in_tile, col_k, dk_acc, R(args.scale));
  if constexpr (kWanted.dv) put_rows<kRowTiles, kColsV / 8>(v_smem, row_in_tile, col_v, dv_acc, R(1));
  __syncthreads();
  if constexpr (kWanted.dk) HeadView(args.dk, seq.batch, seq.first_kv, head_kv).store(k_smem, kv_begin, seq.len_kv, kProblem.head_dim);
  if constexpr (kWanted.dv) HeadView(args.dv, seq.batch, seq.first_kv, head_kv).store(v_smem, kv_begin, seq.len_kv, kProblem.head_dim_v);
}

}  // namespace foveal::device
