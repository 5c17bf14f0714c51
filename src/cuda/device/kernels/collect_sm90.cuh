// Gradients of parameters for Hopper, 16-bit types, after a backward pass whose registers hold no terms of pairs (head dims above 128): a CTA owns 128 keys
// and values, walks along the query tiles and computes S and dP anew, but none of the other products.
//
// config.cuh: as for backward_sm90.cuh, with kBlockQ = 64.
#include "ptx/mbarrier.cuh"
#include "tile/dq_sum.cuh"

namespace foveal::device {

constexpr int kConsumers = 2;
constexpr int kBlockKv = 64 * kConsumers, kClusterSize = 1;
constexpr bool kLseAhead = false;
constexpr int kReleases = arrivals_of_warps(4);  // each warp for itself: it also reads statistics
constexpr int kAddingWarps = 1;                  // nobody takes turns
constexpr int kKeyColumns = kDim, kKeyStep = 64;
constexpr int kGradScoreTiles = 0;

}  // namespace foveal::device

#include "tile/backward_sm90.cuh"

namespace foveal::device {

static_assert(kSumsTerms && kBlockQ == 64);

/// One warpgroup: 64 keys of every task.
struct TermCollector : BackwardGroup {
  const int group;

  FOVEAL_DEVICE TermCollector(const Sm90Args& args, const Rings& rings, int group) : BackwardGroup(args, rings, 64 * group), group(group) {}

  FOVEAL_DEVICE void run() const {
    const bool leader = kEveryLaneArrives || thread == 0;
    u32 tile = 0, tasks = 0;
    int round = -1;
    BackwardTask work;
    while (work.next(round, args)) {
      bool partial;
      if (!work.next_tile(args, partial)) continue;
      rings.key.wait_full(tasks);
      rings.value.wait_full(tasks);
      walk(work, partial, tile);
      if (leader) {
        rings.key.release(tasks);
        rings.value.release(tasks);
      }
      ++tasks;
    }
  }

  /// Along the query tiles of a task.
  FOVEAL_DEVICE void walk(BackwardTask& work, bool partial, u32& tile) const {
    float scores[kBlockQ / 2], grad_p[kBlockQ / 2];
    u32 unused[kBlockQ / 4], dropped[kBlockQ / 64];
    EarlyTerms early;
    AheadValues ahead;
    ReadSums sums;
    sums.clear();
    OfHead factors = of_head(work);
    bool tame_keys = keys_are_tame(work);
    for (bool more = true; more; ++tile) {
      load_ahead(ahead, work, tile, partial);
      rings.query.wait_full(tile);
      start_scores(scores, tile);
      rings.grad_out.wait_full(tile);
      wgmma_pin(grad_p);
      wgmma_fence();
      multiply_rows<Element, kBlockQ, kDimV>(grad_p, uniform(rings.value_tile()), 64 * group, uniform(rings.grad_out_tile(tile)));
      wgmma_commit();
      TileKind kind = kind_of(partial, tile);
      wgmma_wait<1>();
      wgmma_pin(scores);
      if constexpr (kHasLines) rings.line_values.wait_full(tile);
      if constexpr (kTameReads) kind = with_factors(kind, tame_keys, tile);
      take_probabilities(kind, scores, unused, dropped, early, factors, ahead, LseAhead{}, work, tile);
      release(rings.query, tile);
      wgmma_wait<0>();
      wgmma_pin(grad_p);
      if (kind != TileKind::full) {
        score_gradients<true>(scores, grad_p, dropped, early, sums, ahead, unused, work, tile);
      } else {
        score_gradients<false>(scores, grad_p, dropped, early, sums, ahead, unused, work, tile);
      }
      release(rings.grad_out, tile);
      const WarpPairs pairs = warp_pairs(work, tile, ahead);
      if constexpr (kBinnedReads > 0) {
        pairs.tell_facts(sums, rings.read_bins(), tile);
        named_barrier_sync(kBinsBarrier, kBinThreads);
      }
      collect_terms(pairs, grad_p, early, sums, tile);
      if constexpr (kHasLines) release(rings.line_values, tile);
      more = work.next_tile(args, partial);
      if (!more || work.head_q(args.attention) != pairs.base.head) {
        pairs.finish<0>(sums, rings.read_bins());
        sums.clear();
        if (more) tame_keys = keys_are_tame(work);
      }
      if (more) follow_head(factors, work);
    }
  }
};

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 1)
    collect_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  foveal::device::run_groups<foveal::device::TermCollector>(args);
}
