#pragma once
// A tile of queries and its loop over kv tiles: common to the forward and the dq kernel.
#include "tile/shared_sm80.cuh"

namespace foveal::device {

struct QueryTile {
  static constexpr int kRows = 16 * kRowTiles;

  int tile, head;
  Sequence seq;
  int begin;  ///< first query

  /// Longest tasks first (LPT): with a causal mask the last tiles have most work.
  FOVEAL_DEVICE QueryTile(const AttentionArgs& args, int task)
      : tile(args.tiles_q - 1 - task % args.tiles_q),
        head(task / args.tiles_q % args.heads_q),
        seq(find_sequence(args, task / args.tiles_q / args.heads_q)),
        begin(tile * kBlockQ) {}

  FOVEAL_DEVICE bool exists() const { return begin < seq.len_q; }
  FOVEAL_DEVICE int row_in_tile() const { return warp_id() / kConfig.column_split * kRows; }    ///< this warp's first
  FOVEAL_DEVICE int q_local() const { return begin + row_in_tile() + lane_id() / 4; }           ///< this thread's first query
  FOVEAL_DEVICE Position at() const { return {seq.batch, head, 0, 0, seq.len_q, seq.len_kv}; }  ///< of its pairs, without q and kv
  FOVEAL_DEVICE HeadView rows(const Tensor& tensor) const { return HeadView(tensor, seq.batch, seq.first_q, head); }

  /// Calls step(kv_begin, masked, keys, values) for each tile that the mask keeps, with `stages` tiles in shared memory. load_queries
  /// issues the loads of what stays. always_masked: treat full tiles as masked too. kept: a flag for each key of a tile, cleared where
  /// needed.
  template <class LoadQueries, class Step>
  FOVEAL_DEVICE void for_each_kv_tile(const AttentionArgs& args, SharedTile<Element, kConfig.stages * kBlockKv, kHeadDimPadded> k_smem,
                                      SharedTile<Element, kConfig.stages * kBlockKv, kHeadDimVPadded> v_smem, unsigned char* kept,
                                      bool always_masked, LoadQueries&& load_queries, Step&& step) const {
    const int head_kv = head / args.group_size;
    const HeadView k(args.k, seq.batch, seq.first_kv, head_kv);
    const HeadView v(args.v, seq.batch, seq.first_kv, head_kv);
    const auto k_stage = [&](int stage) { return SharedTile<Element, kBlockKv, kHeadDimPadded>{k_smem.row(stage * kBlockKv)}; };
    const auto v_stage = [&](int stage) { return SharedTile<Element, kBlockKv, kHeadDimVPadded>{v_smem.row(stage * kBlockKv)}; };
    const auto load = [&](int at, int stage) {
      k.load(k_stage(stage), at * kBlockKv, seq.len_kv, kProblem.head_dim);
      v.load(v_stage(stage), at * kBlockKv, seq.len_kv, kProblem.head_dim_v);
    };

    TileCursor cursor(args.runs, seq.batch, head, tile, divide_up(seq.len_kv, kBlockKv));
    bool more = cursor.next();
    load_queries();
    if (more) load(cursor.tile, 0);
    copy_commit();
    for (int stage = 0; more; stage = (stage + 1) % kConfig.stages) {
      const int kv_begin = cursor.tile * kBlockKv;
      const bool masked = !cursor.full || kv_begin + kBlockKv > seq.len_kv || always_masked;
      more = cursor.next();
      if constexpr (kConfig.stages == 2) {
        if (more) load(cursor.tile, 1 - stage);
        copy_commit();
      }
      if (kHasMask && masked) {
        for (int i = threadIdx.x; i < kBlockKv; i += kThreads) kept[i] = 0;
      }
      copy_wait<kConfig.stages - 1>();
      __syncthreads();
      step(kv_begin, masked, k_stage(stage), v_stage(stage));
      __syncthreads();
      if constexpr (kConfig.stages == 1) {
        if (more) load(cursor.tile, 0);
        copy_commit();
      }
    }
    copy_wait<0>();
    __syncthreads();
  }
};

}  // namespace foveal::device
