// Fused attention backward for Hopper, 16-bit types, head dims above 128: a CTA owns 64 keys, and the two CTAs of a cluster loop over the
// same queries.
//
// dK and dV of 64 keys fill the registers of a warpgroup each, so one warpgroup accumulates dV (S, dV) and the other dK (S, dP, dK). Both
// compute S, which leaves one exchange: dS^T goes through (distributed) shared memory to all four warpgroups of the cluster, and one tile
// later each computes some columns of dQ over the keys of both CTAs. This halves the atomic additions to dQ in global memory, which would
// otherwise be the bottleneck.
//
// config.cuh: kProblem, kConfig (a BackwardConfig).
#include "tile/backward_cta.cuh"
#include "tile/store_fragment.cuh"

namespace foveal::device {

static_assert(kConfig.kernel == BackwardKernel::wide && !kConfig.collects_terms() && kPairTiles == 0, "shared memory is full");
static_assert(kSumCtas == kClusterSize && kBlockQ == 64 && chunk_count(kDim) > 2, "narrower heads have a better kernel");

/// dQ columns that a CTA adds; the dK warpgroup, which has more products, takes only the last ones.
constexpr int kCtaColumns = 2 * kPartColumns, kDkSideColumns = 32;

/// A warpgroup that computes `columns` of them, from first_column on.
template <int first_column, int columns>
struct WideWarpgroup : BackwardWarpgroup {
  static constexpr int kColumns = columns;

  FOVEAL_DEVICE WideWarpgroup(const Sm90Args& args, const Pipelines& pipelines) : BackwardWarpgroup(args, pipelines, 0) {}

  /// Issues dQ = dS K of a tile, over the keys of both CTAs.
  FOVEAL_DEVICE void issue_dq(float (&dq)[columns / 2], u32 use) const {
    pipelines.exchange.consumer_wait(use);
    const KeyTile own{pipelines.key_tile().address + 2 * cluster_rank() * KeyTile::kChunkBytes};
    wgmma_pin(dq);
    wgmma_fence();
    multiply_columns<Element, columns, kBlockKv>(dq, uniform(pipelines.ds_tile(0)), 0, uniform(own), first_column);
    multiply_columns<Element, columns, kBlockKv>(dq, uniform(pipelines.ds_tile(1)), 0, uniform(pipelines.peer_key_tile()), first_column,
                                                 true);
    wgmma_commit();
  }

  /// Once dQ has arrived: releases dS in both CTAs and adds dQ to the accumulator in global memory.
  FOVEAL_DEVICE void finish_dq(float (&dq)[columns / 2], u32 use, float* sum) const {
    wgmma_pin(dq);
    consumer_release(pipelines.exchange, use);
    if (kEveryLaneArrives || lane_id() == 0)
      mbarrier_arrive_there(address_in_cta(pipelines.exchange.empty_barrier(use), cluster_rank() ^ 1));
    if constexpr (kConfig.reproducible) pipelines.dq_order.consumer_wait(use);
    add_dq(sum, 64 * (kCtaColumns * cluster_rank() + first_column), dq);
    if constexpr (kConfig.reproducible) consumer_release(pipelines.dq_order, use);
  }

  /// The last tile of a task.
  FOVEAL_DEVICE void flush_dq(u32 use, float* sum) const {
    float dq[columns / 2];
    issue_dq(dq, use);
    wgmma_wait<0>();
    finish_dq(dq, use, sum);
  }
};

struct DvWarpgroup : WideWarpgroup<0, kCtaColumns - kDkSideColumns> {
  using WideWarpgroup::WideWarpgroup;

  FOVEAL_DEVICE void run() const {
    const bool leader = kEveryLaneArrives || thread == 0;
    u32 tile = 0, tasks = 0;
    int round = -1;
    BackwardTask work;
    while (work.next(round, args)) {
      float dv[kDimV / 2];
#pragma unroll
      for (int i = 0; i < kDimV / 2; ++i) dv[i] = 0;
      float* sum = nullptr;  // of the previous tile
      HeadConstants constants;
      bool partial;
      while (work.next_tile(args, partial)) {
        if (sum == nullptr) {
          pipelines.key.consumer_wait(tasks);
          constants = head_constants(work);
        }
        update_head_constants(constants, work);
        float scores[kBlockQ / 2];
        u32 p[kBlockQ / 4], dropped[kBlockQ / 64];
        EarlyTerms early;
        PairPrefetch prefetched;
        prefetch_pairs(prefetched, work, tile, partial);
        pipelines.query.consumer_wait(tile);
        LsePrefetch lse;
        prefetch_lse(lse, tile);
        issue_qk(scores, tile);
        const TileKind kind = kind_of(partial, tile);
        wgmma_wait<0>();
        wgmma_pin(scores);
        if constexpr (kHasLines) pipelines.line_values.consumer_wait(tile);
        recompute_p(kind, scores, p, dropped, early, constants, prefetched, lse, work, tile);
        if constexpr (kHasLines) consumer_release(pipelines.line_values, tile);
        consumer_release(pipelines.query, tile);

        const auto issue_dv = [&] {
          pipelines.dout.consumer_wait(tile);
          wgmma_pin(dv);
          wgmma_fence();
          multiply_registers<Element, kDimV, kBlockQ>(dv, p, uniform(pipelines.dout_tile(tile)), true);
          wgmma_commit();
        };
        if (sum == nullptr) {
          issue_dv();
        } else {
          float dq[kColumns / 2];
          issue_dq(dq, tile - 1);
          issue_dv();
          wgmma_wait<1>();
          finish_dq(dq, tile - 1, sum);  // overlaps with dV
        }
        wgmma_wait<0>();
        wgmma_pin(dv);
        consumer_release(pipelines.dout, tile);
        sum = dq_sum(work);
        ++tile;
      }
      if (sum != nullptr) {
        flush_dq(tile - 1, sum);
        if (leader) {
          pipelines.key.consumer_release(tasks);
          pipelines.value.consumer_release(tasks);
        }
        ++tasks;
      }
      write_rows<kProblem.head_dim_v>(args.attention.dv, work, dv, 1.0f);
    }
  }
};

struct DkWarpgroup : WideWarpgroup<kCtaColumns - kDkSideColumns, kDkSideColumns> {
  using WideWarpgroup::WideWarpgroup;

  /// Sends dS^T to the other warpgroup and to the peer CTA, 16 keys for each warp.
  FOVEAL_DEVICE void exchange(const u32 (&ds)[kBlockQ / 4], u32 use) const {
    constexpr u32 kBytes = 16 * kChunkRowBytes;
    pipelines.exchange.producer_acquire(use);
    store_fragment<kBlockQ>(uniform(pipelines.ds_tile(0)), 0, ds, thread);
    fence_async_proxy();
    __syncwarp();
    if (lane_id() == 0) {
      const u32 full = pipelines.exchange.full_barrier(use), other = cluster_rank() ^ 1, offset = thread / kWarp * kBytes;
      mbarrier_arrive_expect_bytes(full, kBytes);
      bulk_copy_there(address_in_cta(pipelines.ds_tile(1).address, other) + offset, pipelines.ds_tile(0).address + offset, kBytes,
                      address_in_cta(full, other));
    } else if (kEveryLaneArrives) {
      mbarrier_arrive(pipelines.exchange.full_barrier(use));
    }
  }

  FOVEAL_DEVICE void run() const {
    const bool leader = kEveryLaneArrives || thread == 0;
    u32 tile = 0, tasks = 0;
    int round = -1;
    BackwardTask work;
    while (work.next(round, args)) {
      float dk[kDim / 2];
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) dk[i] = 0;
      float* sum = nullptr;  // of the previous tile
      bool partial;
      HeadConstants constants;
      while (work.next_tile(args, partial)) {
        if (sum == nullptr) {
          pipelines.key.consumer_wait(tasks);
          pipelines.value.consumer_wait(tasks);
          constants = head_constants(work);
        }
        update_head_constants(constants, work);
        float scores[kBlockQ / 2], dp[kBlockQ / 2];
        u32 p[kBlockQ / 4], ds[kBlockQ / 4], dropped[kBlockQ / 64];
        EarlyTerms early;
        ReadSums no_sums;
        PairPrefetch prefetched;
        prefetch_pairs(prefetched, work, tile, partial);
        pipelines.query.consumer_wait(tile);
        LsePrefetch lse;
        prefetch_lse(lse, tile);
        issue_qk(scores, tile);
        const TileKind kind = kind_of(partial, tile);
        pipelines.dout.consumer_wait(tile);
        wgmma_pin(dp);
        wgmma_fence();
        multiply_rows<Element, kBlockQ, kDimV>(dp, uniform(pipelines.value_tile()), 0, uniform(pipelines.dout_tile(tile)));
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_pin(scores);
        if constexpr (kHasLines) pipelines.line_values.consumer_wait(tile);
        recompute_p(kind, scores, p, dropped, early, constants, prefetched, lse, work, tile);
        wgmma_wait<0>();
        wgmma_pin(dp);
        if (kind != TileKind::full) {
          compute_ds<true>(scores, dp, dropped, early, no_sums, prefetched, ds, work, tile);
        } else {
          compute_ds<false>(scores, dp, dropped, early, no_sums, prefetched, ds, work, tile);
        }
        if constexpr (kHasLines) consumer_release(pipelines.line_values, tile);
        consumer_release(pipelines.dout, tile);

        const auto issue_dk = [&] {
          wgmma_pin(dk);
          wgmma_fence();
          multiply_registers<Element, kDim, kBlockQ>(dk, ds, uniform(pipelines.query_tile(tile)), true);
          wgmma_commit();
        };
        if (sum == nullptr) {
          issue_dk();
        } else {
          float dq[kColumns / 2];
          issue_dq(dq, tile - 1);
          issue_dk();
          wgmma_wait<1>();
          finish_dq(dq, tile - 1, sum);  // overlaps with dK
        }
        exchange(ds, tile);
        wgmma_wait<0>();
        wgmma_pin(dk);
        consumer_release(pipelines.query, tile);
        sum = dq_sum(work);
        ++tile;
      }
      if (sum != nullptr) {
        flush_dq(tile - 1, sum);
        add_gradients_of_dk(work, dk);
        if (leader) {
          pipelines.key.consumer_release(tasks);
          pipelines.value.consumer_release(tasks);
        }
        ++tasks;
      }
      write_dk(work, dk);
    }
  }
};

}  // namespace foveal::device

extern "C" __global__ void __cluster_dims__(foveal::device::kClusterSize, 1, 1) __launch_bounds__(foveal::device::kThreads, 1)
    backward_wide_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  using namespace foveal::device;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Pipelines pipelines(shared);
  pipelines.init();
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warp_group == 0) {
    run_helper_warps(args, pipelines);
  } else {
    registers_increase<kConfig.consumer_registers()>();
    if (warp_group == 2) {
      DkWarpgroup(args, pipelines).run();
    } else {
      DvWarpgroup(args, pipelines).run();
    }
  }
  cluster_sync();  // no CTA may exit while its peer can still arrive at its barriers
}
