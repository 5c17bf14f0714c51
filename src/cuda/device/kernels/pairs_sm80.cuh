// Gradient of a parameter with one element for each pair (an additive bias) that batch entries or heads share. A block owns a tile of pairs
// and loops over batch entries and heads in order, so that each element is summed by one thread in a fixed order, without atomics:
//  s = q k^T;  dp = dout v^T;  ds' = p (dp - delta);  values[index] += ds' factor
//
// config.cuh: kProblem, kConfig (a PortableConfig), kPairs (a PairsRead).
#include "tile/dq_tile.cuh"

namespace foveal::device {

constexpr int kRows = 16 * kRowTiles;

/// ds' -> gradient of the read.
FOVEAL_DEVICE void pair_terms(const AttentionArgs& args, Position at, int q_local, int kv_local, const R (&s)[kRowTiles][kBlockKv / 8][4],
                              R (&ds)[kRowTiles][kBlockKv / 8][4]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kBlockKv / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        at.q = int(args.q_offset) + min(q_local + 16 * m + e / 2 * 8, at.seqlen_q - 1);
        at.kv = int(args.kv_offset) + min(kv_local + 8 * n + 2 * (lane_id() % 4) + e % 2, at.seqlen_kv - 1);
        const R score = kScaleBefore ? s[m][n][e] : s[m][n][e] * R(args.scale);
        ds[m][n][e] = ds[m][n][e] == 0 ? R(0) : ds[m][n][e] * read_factor<kPairs.read>(score, at, args.score);
      }
    }
  }
}

struct alignas(2 * sizeof(R)) Neighbours {
  R x, y;
};

/// values[index] += term. Neighbours along kv are often adjacent in memory.
FOVEAL_DEVICE void add_pairs(const AttentionArgs& args, Position at, int q_local, int kv_local,
                             const R (&terms)[kRowTiles][kBlockKv / 8][4]) {
  const ParamGradient& gradient = args.gradient[kRead[kPairs.read].param];
  R* values = static_cast<R*>(gradient.values);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n < kBlockKv / 8; ++n) {
        i64 offset[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          at.q = int(args.q_offset) + min(q_local + 16 * m + 8 * i, at.seqlen_q - 1);
          at.kv = int(args.kv_offset) + min(kv_local + 8 * n + 2 * (lane_id() % 4) + j, at.seqlen_kv - 1);
          int index[kMaxParamRank];
          read_index<kPairs.read>(R(0), at, args.score, index);
          offset[j] = 0;
#pragma unroll
          for (int d = 0; d < kRead[kPairs.read].rank; ++d) offset[j] += index[d] * gradient.stride[d];
        }
        // Terms of dropped or out-of-bounds pairs are exactly 0.
        const R x = terms[m][n][2 * i], y = terms[m][n][2 * i + 1];
        Neighbours* both = reinterpret_cast<Neighbours*>(values + offset[0]);
        if (x != 0 && y != 0 && offset[1] == offset[0] + 1 && reinterpret_cast<u64>(both) % sizeof(Neighbours) == 0) {
          const Neighbours before = *both;
          *both = {before.x + x, before.y + y};
        } else {
          if (x != 0) values[offset[0]] += x;
          if (y != 0) values[offset[1]] += y;
        }
      }
    }
  }
}

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, kConfig.ctas)
    pairs_sm80(const __grid_constant__ foveal::device::AttentionArgs args) {
  using namespace foveal::device;
  extern __shared__ uint4 shared[];
  constexpr PairsSm80Layout kShared = kDqShared.pairs;
  static_assert(kConfig.stages == 1 && kShared.bytes == kSharedBytes, "the host set aside another size");
  const auto q_smem = tile_at<kBlockQ, kHeadDimPadded>(shared, kShared.query);
  const auto dout_smem = tile_at<kBlockQ, kHeadDimVPadded>(shared, kShared.dout);
  const auto k_smem = tile_at<kBlockKv, kHeadDimPadded>(shared, kShared.key);
  const auto v_smem = tile_at<kBlockKv, kHeadDimVPadded>(shared, kShared.value);
  unsigned char* kept = shared_at<unsigned char>(shared, kShared.kept);

  const int tile_kv = int(blockIdx.x) % args.tiles_kv, tile_q = int(blockIdx.x) / args.tiles_kv % args.tiles_q;
  // The batch entry and head, as far as the parameter is indexed by them.
  const int own = int(blockIdx.x) / args.tiles_kv / args.tiles_q;
  const int own_head = kPairs.own_head ? own % args.heads_q : 0, own_batch = kPairs.own_head ? own / args.heads_q : own;
  const int q_begin = tile_q * kBlockQ, kv_begin = tile_kv * kBlockKv;
  const int row_in_tile = warp_id() * kRows;
  const int q_local = q_begin + row_in_tile + lane_id() / 4;

  // Sums over all batch entries and heads, if they share addresses.
  R sum[kRowTiles][kBlockKv / 8][4];
  clear(sum);
  for (int batch = kPairs.own_batch ? own_batch : 0; batch < (kPairs.own_batch ? own_batch + 1 : args.batch); ++batch) {
    const Sequence seq = find_sequence(args, batch);
    if (q_begin >= seq.len_q || kv_begin >= seq.len_kv) continue;
    for (int head = own_head; head < (kPairs.own_head ? own_head + 1 : args.heads_q); ++head) {
      TileCursor cursor(args.runs, batch, head, tile_q, divide_up(seq.len_kv, kBlockKv));
      bool found = false;
      while (!found && cursor.next()) found = cursor.tile == tile_kv;
      if (!found) continue;

      const int head_kv = head / args.group_size;
      HeadView(args.q, batch, seq.first_q, head).load(q_smem, q_begin, seq.len_q, kProblem.head_dim);
      HeadView(args.dout, batch, seq.first_q, head).load(dout_smem, q_begin, seq.len_q, kProblem.head_dim_v);
      HeadView(args.k, batch, seq.first_kv, head_kv).load(k_smem, kv_begin, seq.len_kv, kProblem.head_dim);
      HeadView(args.v, batch, seq.first_kv, head_kv).load(v_smem, kv_begin, seq.len_kv, kProblem.head_dim_v);
      copy_commit();
      RowStatistics rows[kRowTiles][2];
      R delta[kRowTiles][2];
      load_statistics(args, seq, head, q_local, rows, delta);
      copy_wait<0>();
      __syncthreads();

      R s[kRowTiles][kBlockKv / 8][4], dp[kRowTiles][kBlockKv / 8][4];
      multiply_nt<kRowTiles, kBlockKv>(s, q_smem, row_in_tile, k_smem);
      multiply_nt<kRowTiles, kBlockKv>(dp, dout_smem, row_in_tile, v_smem);
      const Position at{batch, head, 0, 0, seq.len_q, seq.len_kv};
      dq_scores<true>(args, at, q_local, kv_begin, s, dp, rows, delta, kept);
      pair_terms(args, at, q_local, kv_begin, s, dp);
      if constexpr (kPairs.shares_address) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
          for (int n = 0; n < kBlockKv / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[m][n][e] += dp[m][n][e];
      } else {
        add_pairs(args, at, q_local, kv_begin, dp);
      }
      __syncthreads();
    }
  }
  if constexpr (kPairs.shares_address) {
    add_pairs(args, {own_batch, own_head, 0, 0, args.seqlen_q, args.seqlen_kv}, q_local, kv_begin, sum);
  }
}
