// Fused attention backward for Hopper, 16-bit types, head dims up to 128: a CTA owns 128 keys, loops over the query tiles, and accumulates
// dK and dV in registers and dQ by atomic additions to an fp32 buffer in global memory.
//
// Two consumer warpgroups own 64 keys each. Only dQ = dS K needs all keys of the tile, so dS^T goes through shared memory (double-buffered,
// one barrier a tile).
//
// config.cuh: kProblem, kConfig (a BackwardConfig).
#include "tile/backward_cta.cuh"
#include "tile/store_fragment.cuh"

namespace foveal::device {

static_assert(kConfig.kernel == BackwardKernel::narrow && kSumCtas == 1 && kSumParts == kConsumers && kPartColumns <= 64);

/// Whether terms of parameter gradients leave the registers before the dQ and dK products, which then need those, or overlap with them.
constexpr bool kCollectsFirst = !kSpareRegisters;

/// Whether dP overlaps with the softmax: not if early terms occupy its registers.
constexpr bool kOverlapsDp = kSpareRegisters || kEarlyReads == 0;

/// Whether descriptors of the next Q K^T are computed before dQ is added: with tables they take shuffles, which would wait behind the
/// atomic additions.
constexpr bool kEarlyOperands = kTables > 0;

/// Whether the kind of a tile is found during the last products of the previous tile, or, where registers are scarce, during its own Q K^T.
constexpr bool kEarlyKind = kBlockQ == 64;

/// Whether full tiles have a copy of the step of their own, without branches by kind: up to 8 % faster than one copy for all kinds. Head
/// dims up to 64 gain nothing, scores 1 % for up to twice the compile time.
constexpr bool kFullTilesApart = !kHasScore && !kProblem.dropout && kBlockQ == 64;

/// One warpgroup: 64 keys of every task, and one part of dQ.
struct Consumer : BackwardWarpgroup {
  const int group;

  FOVEAL_DEVICE Consumer(const Sm90Args& args, const Pipelines& pipelines, int group)
      : BackwardWarpgroup(args, pipelines, 64 * group), group(group) {}

  FOVEAL_DEVICE void run() {
    u32 tile = 0, tasks = 0;
    int round = -1;
    BackwardTask work;
    TableLoader table_loader(args.scale);
    while (work.next(round, args)) {
      float dk[kDim / 2], dv[kDimV / 2];
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) dk[i] = 0;
#pragma unroll
      for (int i = 0; i < kDimV / 2; ++i) dv[i] = 0;
      bool partial;
      if (work.next_tile<true>(args, partial)) accumulate(work, partial, tile, tasks++, dk, dv, table_loader);
      write_rows<kProblem.head_dim_v>(args.attention.dv, work, dv, 1.0f);
      write_dk(work, dk);
    }
  }

  /// Loops over the query tiles of a task. Each iteration leaves the next Q K^T in flight. Long: the step shares the registers of the loop,
  /// and spills as a function with all of them as arguments.
  FOVEAL_DEVICE void accumulate(BackwardTask& work, bool partial, u32& tile, u32 use, float (&dk)[kDim / 2], float (&dv)[kDimV / 2],
                                TableLoader& table_loader) const {
    constexpr u32 kScoresBarrier = 1, kTableBarrier = 3;
    const bool leader = kEveryLaneArrives || thread == 0;
    float scores[kBlockQ / 2], dp[kBlockQ / 2], dq[kPartColumns / 2];
    u32 p[kBlockQ / 4], ds[kBlockQ / 4], dropped[kBlockQ / 64];
    EarlyTerms early;
    PairPrefetch prefetched;
    ReadSums sums;
    sums.clear();

    HeadConstants constants = head_constants(work);
    bool tame_keys = keys_are_tame(work);
    table_loader.update(pipelines.tables(), work.base(args.attention), args.attention.score, threadIdx.x - 128, 128 * kConsumers,
                        kTableBarrier);
    prefetch_pairs(prefetched, work, tile, partial);
    pipelines.key.consumer_wait(use);
    pipelines.query.consumer_wait(tile);
    TileKind kind = kEarlyKind ? kind_of(partial, tile) : TileKind::full;
    issue_qk(scores, tile);
    pipelines.value.consumer_wait(use);
    // A step: one tile, and whether another follows. known_full: this copy of the step is for full tiles alone. It is inlined before
    // anything is optimized, as variables of the loop would otherwise pass through memory.
    const auto step = [&](auto known_full) __attribute__((always_inline)) {
      constexpr bool kFull = decltype(known_full)::value;
      const QueryTile query_tile = uniform(pipelines.query_tile(tile)), dout_tile = uniform(pipelines.dout_tile(tile));
      const auto issue_dp = [&] {
        wgmma_pin(dp);
        wgmma_fence();
        multiply_rows<Element, kBlockQ, kDimV>(dp, uniform(pipelines.value_tile()), 64 * group, dout_tile);
        wgmma_commit();
      };

      // P, overlapped with dP = V dO^T (transposed, as S is).
      pipelines.dout.consumer_wait(tile);
      if constexpr (kOverlapsDp) issue_dp();
      wgmma_wait<kOverlapsDp>();
      wgmma_pin(scores);
      if constexpr (kHasLines) pipelines.line_values.consumer_wait(tile);
      if constexpr (kPairTiles > 0) pipelines.pairs.pipeline.consumer_wait(tile);
      if constexpr (kTameReads) kind = guard_factors(kind, tame_keys, tile);
      if constexpr (kFull) {
        recompute_p_tile<false>(scores, p, dropped, early, constants, prefetched, LsePrefetch{}, work, tile);
      } else {
        recompute_p(kind, scores, p, dropped, early, constants, prefetched, LsePrefetch{}, work, tile);
      }

      // dV += P^T dO, overlapped with dS = P (dP - delta).
      if constexpr (!kOverlapsDp) issue_dp();
      wgmma_pin(dv);
      wgmma_fence();
      multiply_registers<Element, kDimV, kBlockQ>(dv, p, dout_tile, true);
      wgmma_commit();
      wgmma_wait<1>();
      wgmma_pin(dp);
      if (!kFull && kind != TileKind::full) {
        compute_ds<true>(scores, dp, dropped, early, sums, prefetched, ds, work, tile);
      } else {
        compute_ds<false>(scores, dp, dropped, early, sums, prefetched, ds, work, tile);
      }
      if constexpr (kBinnedReads > 0) {
        warp_pairs(work, tile, prefetched).publish_ranges(sums, pipelines.read_bins(), tile);
        if constexpr (kCollectsFirst) named_barrier_sync(kBinsBarrier, kBinThreads);
      }
      if constexpr (kSumsTerms && kCollectsFirst) collect_terms(warp_pairs(work, tile, prefetched), dp, early, sums, tile);
      const KvTile ds_tile = uniform(pipelines.ds_tile(tile));
      store_fragment<kBlockQ>(ds_tile, 64 * group, ds, thread);
      fence_async_proxy();
      named_barrier_sync(kScoresBarrier, 128 * kConsumers);

      // dQ = dS K and dK += dS^T Q, overlapped with terms of parameters and what the next tile needs.
      wgmma_pin(dq);
      wgmma_pin(dk);
      wgmma_fence();
      multiply_columns<Element, kPartColumns, kBlockKv>(dq, ds_tile, kSplitColumns ? 0 : 64 * group, uniform(pipelines.key_tile()),
                                                        kSplitColumns ? kPartColumns * group : 0);
      wgmma_commit();
      multiply_registers<Element, kDim, kBlockQ>(dk, ds, query_tile, true);
      wgmma_commit();
      float* sum = dq_sum(work);
      const WarpPairs pairs = warp_pairs(work, tile, prefetched);
      if constexpr (kSumsTerms && !kCollectsFirst) collect_terms(pairs, dp, early, sums, tile);
      if constexpr (kHasLines) consumer_release(pipelines.line_values, tile);
      const bool more = work.next_tile<true>(args, partial);
      if (!more && leader) pipelines.value.consumer_release(use);
      if (more) prefetch_pairs(prefetched, work, tile + 1, partial);
      if constexpr (kSumsTerms) {
        if (!more || work.head_q(args.attention) != pairs.base.head) {
          pairs.finish<0>(sums, pipelines.read_bins());
          sums.clear();
          if (more) tame_keys = keys_are_tame(work);
        }
      }
      if (more) {
        update_head_constants(constants, work);
        table_loader.update(pipelines.tables(), work.base(args.attention), args.attention.score, threadIdx.x - 128, 128 * kConsumers,
                            kTableBarrier);
      }
      // Before dQ is added, whose registers are read slowly: otherwise a barrier address would be allocated one of them and wait, and Q K^T
      // behind it.
      if (more) {
        pipelines.query.consumer_wait(tile + 1);
        if constexpr (kEarlyKind) kind = kind_of(partial, tile + 1);
      }
      QkOperands next{};
      if constexpr (kEarlyOperands) next = qk_operands(tile + 1);
      wgmma_wait<1>();
      wgmma_pin(dq);
      if (leader) pipelines.dout.consumer_release(tile);
      if constexpr (kConfig.reproducible) pipelines.dq_order.consumer_wait(tile);
      add_dq(sum, 64 * kPartColumns * group, dq);
      if constexpr (kConfig.reproducible) consumer_release(pipelines.dq_order, tile);
      wgmma_wait<0>();
      wgmma_pin(dk);
      wgmma_pin(dv);
      if (leader) pipelines.query.consumer_release(tile);
      ++tile;
      if (!more) return false;
      issue_qk(scores, kEarlyOperands ? next : qk_operands(tile));
      return true;
    };
    for (;;) {
      if constexpr (!kEarlyKind) kind = kind_of(partial, tile);
      if (kFullTilesApart && kind == TileKind::full) {
        if (!step(Constant<kFullTilesApart>{})) break;
      } else {
        if (!step(Constant<false>{})) break;
      }
    }
    add_gradients_of_dk(work, dk);
    if (leader) pipelines.key.consumer_release(use);
  }
};

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 1)
    backward_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  foveal::device::run_cta<foveal::device::Consumer>(args);
}
