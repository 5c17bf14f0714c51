// Gradients of parameters for Hopper, 16-bit types, after a backward kernel that has no registers for them (head dims above 128): a CTA
// owns 128 keys, loops over the query tiles and recomputes S and dP, but none of the other products.
//
// config.cuh: kProblem, kConfig (a BackwardConfig).
#include "tile/backward_cta.cuh"

namespace foveal::device {

static_assert(kConfig.kernel == BackwardKernel::collect && kSumsTerms && kBlockQ == 64);

/// One warpgroup: 64 keys of every task.
struct TermCollector : BackwardWarpgroup {
  const int group;

  FOVEAL_DEVICE TermCollector(const Sm90Args& args, const Pipelines& pipelines, int group)
      : BackwardWarpgroup(args, pipelines, 64 * group), group(group) {}

  FOVEAL_DEVICE void run() const {
    const bool leader = kEveryLaneArrives || thread == 0;
    u32 tile = 0, tasks = 0;
    int round = -1;
    BackwardTask work;
    while (work.next(round, args)) {
      bool partial;
      if (!work.next_tile(args, partial)) continue;
      pipelines.key.consumer_wait(tasks);
      pipelines.value.consumer_wait(tasks);
      walk(work, partial, tile);
      if (leader) {
        pipelines.key.consumer_release(tasks);
        pipelines.value.consumer_release(tasks);
      }
      ++tasks;
    }
  }

  /// Loops over the query tiles of a task.
  FOVEAL_DEVICE void walk(BackwardTask& work, bool partial, u32& tile) const {
    float scores[kBlockQ / 2], dp[kBlockQ / 2];
    u32 unused[kBlockQ / 4], dropped[kBlockQ / 64];
    EarlyTerms early;
    PairPrefetch prefetched;
    ReadSums sums;
    sums.clear();
    HeadConstants constants = head_constants(work);
    bool tame_keys = keys_are_tame(work);
    for (bool more = true; more; ++tile) {
      prefetch_pairs(prefetched, work, tile, partial);
      pipelines.query.consumer_wait(tile);
      issue_qk(scores, tile);
      pipelines.dout.consumer_wait(tile);
      wgmma_pin(dp);
      wgmma_fence();
      multiply_rows<Element, kBlockQ, kDimV>(dp, uniform(pipelines.value_tile()), 64 * group, uniform(pipelines.dout_tile(tile)));
      wgmma_commit();
      TileKind kind = kind_of(partial, tile);
      wgmma_wait<1>();
      wgmma_pin(scores);
      if constexpr (kHasLines) pipelines.line_values.consumer_wait(tile);
      if constexpr (kTameReads) kind = guard_factors(kind, tame_keys, tile);
      recompute_p(kind, scores, unused, dropped, early, constants, prefetched, LsePrefetch{}, work, tile);
      consumer_release(pipelines.query, tile);
      wgmma_wait<0>();
      wgmma_pin(dp);
      if (kind != TileKind::full) {
        compute_ds<true>(scores, dp, dropped, early, sums, prefetched, unused, work, tile);
      } else {
        compute_ds<false>(scores, dp, dropped, early, sums, prefetched, unused, work, tile);
      }
      consumer_release(pipelines.dout, tile);
      const WarpPairs pairs = warp_pairs(work, tile, prefetched);
      if constexpr (kBinnedReads > 0) {
        pairs.publish_ranges(sums, pipelines.read_bins(), tile);
        named_barrier_sync(kBinsBarrier, kBinThreads);
      }
      collect_terms(pairs, dp, early, sums, tile);
      if constexpr (kHasLines) consumer_release(pipelines.line_values, tile);
      more = work.next_tile(args, partial);
      if (!more || work.head_q(args.attention) != pairs.base.head) {
        pairs.finish<0>(sums, pipelines.read_bins());
        sums.clear();
        if (more) tame_keys = keys_are_tame(work);
      }
      if (more) update_head_constants(constants, work);
    }
  }
};

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 1)
    collect_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  foveal::device::run_cta<foveal::device::TermCollector>(args);
}
