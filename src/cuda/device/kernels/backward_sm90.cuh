// Fused attention backward for Hopper, 16-bit types, head dims up to 128: a CTA owns 128 keys and values, walks along the query tiles and keeps dk
// and dv in registers; its contributions to dq are added to an fp32 buffer in global memory.
//
// Two warpgroups of 64 keys each do all products for them; only dQ = dS K needs all keys, so dS^T goes through shared memory (two buffers, one
// barrier a tile).
//
// config.cuh: Element, SeqlenIndex; kHeadDim, kHeadDimV (multiples of 8), kBlockQ (64, or 128 for head dims up to 64), kStages, kTileSource (a
// TileSource), kPairStages; kVarlen, kDropout, kReproducible, kCollects, kCollectsTerms, kBinBits; kHelperRegisters, kConsumerRegisters.
#include "ptx/mbarrier.cuh"
#include "tile/dq_sum.cuh"

namespace foveal::device {

constexpr int kConsumers = 2;
constexpr int kBlockKv = 64 * kConsumers, kClusterSize = 1;
constexpr bool kLseAhead = false;
constexpr int kReleases = arrivals_of_groups(1);  // after a barrier that all have passed
constexpr int kAddingWarps = 4 * kConsumers;
constexpr int kKeyColumns = kSumColumns,
              kKeyStep = kSplitColumns && kDim > 64 ? kPartColumns : 64;  // dQ's parts of columns begin where chunks of K do
constexpr int kGradScoreTiles = 2;

}  // namespace foveal::device

#include "tile/backward_sm90.cuh"

namespace foveal::device {

static_assert(kSumCtas == 1 && kSumParts == kConsumers && kPartColumns <= 64);

/// Whether terms of parameters' gradients leave the registers before the products that follow, which then need these, or beside them.
constexpr bool kCollectsFirst = !kRoomy;

/// Whether dP is under way beside the probabilities: not where terms that are known with these take its registers.
constexpr bool kGradPBeside = kRoomy || kEarlyReads == 0;

/// Whether operands of the next scores are found before dQ is added: kernels that fill tables ask lanes for them, which waits behind the additions.
constexpr bool kOperandsAhead = kTables > 0;

/// Whether the kind of a tile is found beside the last products of the tile before, or beside its own scores: where registers are short, for those that it takes.
constexpr bool kKindAhead = kBlockQ == 64;

/// One warpgroup: 64 keys of every task, and one part of dQ.
struct Consumer : BackwardGroup {
  const int group;

  FOVEAL_DEVICE Consumer(const Sm90Args& args, const Rings& rings, int group) : BackwardGroup(args, rings, 64 * group), group(group) {}

  FOVEAL_DEVICE void run() {
    u32 tile = 0, tasks = 0;
    int round = -1;
    BackwardTask work;
    TableFilling filling(args.scale);
    while (work.next(round, args)) {
      float dk[kDim / 2], dv[kDimV / 2];
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) dk[i] = 0;
#pragma unroll
      for (int i = 0; i < kDimV / 2; ++i) dv[i] = 0;
      bool partial;
      if (work.next_tile(args, partial)) accumulate(work, partial, tile, tasks++, dk, dv, filling);
      write_rows<kHeadDimV>(args.attention.dv, work, dv, 1.0f);
      write_dk(work, dk);
    }
  }

  /// Walks along the query tiles of a task. Each round leaves the scores of the next tile under way.
  FOVEAL_DEVICE void accumulate(BackwardTask& work, bool partial, u32& tile, u32 use, float (&dk)[kDim / 2], float (&dv)[kDimV / 2],
                                TableFilling& filling) const {
    constexpr u32 kScoresBarrier = 1, kTableBarrier = 3;
    const bool leader = kEveryLaneArrives || thread == 0;
    float scores[kBlockQ / 2], grad_p[kBlockQ / 2], dq[kPartColumns / 2];
    u32 p[kBlockQ / 4], grad_scores[kBlockQ / 4], dropped[kBlockQ / 64];
    EarlyTerms early;
    AheadValues ahead;
    ReadSums sums;
    sums.clear();

    OfHead factors = of_head(work);
    bool tame_keys = keys_are_tame(work);
    filling.follow(rings.tables(), work.base(args.attention), args.attention.score, threadIdx.x - 128, 128 * kConsumers, kTableBarrier);
    load_ahead(ahead, work, tile, partial);
    rings.key.wait_full(use);
    rings.query.wait_full(tile);
    TileKind kind = kKindAhead ? kind_of(partial, tile) : TileKind::full;
    start_scores(scores, tile);
    rings.value.wait_full(use);
    for (;;) {
      if constexpr (!kKindAhead) kind = kind_of(partial, tile);
      const QueryTile query_tile = uniform(rings.query_tile(tile)), grad_out_tile = uniform(rings.grad_out_tile(tile));
      const auto grad_p_product = [&] {
        wgmma_pin(grad_p);
        wgmma_fence();
        multiply_rows<Element, kBlockQ, kDimV>(grad_p, uniform(rings.value_tile()), 64 * group, grad_out_tile);
        wgmma_commit();
      };
      rings.grad_out.wait_full(tile);
      if constexpr (kGradPBeside) grad_p_product();
      wgmma_wait<kGradPBeside>();
      wgmma_pin(scores);
      if constexpr (kHasLines) rings.line_values.wait_full(tile);
      if constexpr (kPairTiles > 0) rings.pairs.ring.wait_full(tile);
      if constexpr (kTameReads) kind = with_factors(kind, tame_keys, tile);
      take_probabilities(kind, scores, p, dropped, early, factors, ahead, LseAhead{}, work, tile);

      if constexpr (!kGradPBeside) grad_p_product();
      wgmma_pin(dv);
      wgmma_fence();
      multiply_registers<Element, kDimV, kBlockQ>(dv, p, grad_out_tile, true);
      wgmma_commit();
      wgmma_wait<1>();
      wgmma_pin(grad_p);
      if (kind != TileKind::full) {
        score_gradients<true>(scores, grad_p, dropped, early, sums, ahead, grad_scores, work, tile);
      } else {
        score_gradients<false>(scores, grad_p, dropped, early, sums, ahead, grad_scores, work, tile);
      }
      if constexpr (kBinnedReads > 0) {
        warp_pairs(work, tile, ahead).tell_facts(sums, rings.read_bins(), tile);
        if constexpr (kCollectsFirst) named_barrier_sync(kBinsBarrier, kBinThreads);
      }
      if constexpr (kSumsTerms && kCollectsFirst) collect_terms(warp_pairs(work, tile, ahead), grad_p, early, sums, tile);
      const KvTile grad_score_tile = uniform(rings.grad_score_tile(tile));
      store_fragment<kBlockQ>(grad_score_tile, 64 * group, grad_scores, thread);
      fence_async_proxy();
      named_barrier_sync(kScoresBarrier, 128 * kConsumers);

      wgmma_pin(dq);
      wgmma_pin(dk);
      wgmma_fence();
      multiply_columns<Element, kPartColumns, kBlockKv>(dq, grad_score_tile, kSplitColumns ? 0 : 64 * group, uniform(rings.key_tile()),
                                                        kSplitColumns ? kPartColumns * group : 0);
      wgmma_commit();
      multiply_registers<Element, kDim, kBlockQ>(dk, grad_scores, query_tile, true);
      wgmma_commit();
      float* sum = dq_sum(work);
      const WarpPairs pairs = warp_pairs(work, tile, ahead);
      if constexpr (kSumsTerms && !kCollectsFirst) collect_terms(pairs, grad_p, early, sums, tile);
      if constexpr (kHasLines) release(rings.line_values, tile);
      const bool more = work.next_tile(args, partial);
      if (!more && leader) rings.value.release(use);
      if (more) load_ahead(ahead, work, tile + 1, partial);
      if constexpr (kSumsTerms) {
        if (!more || work.head_q(args.attention) != pairs.base.head) {
          pairs.finish<0>(sums, rings.read_bins());
          sums.clear();
          if (more) tame_keys = keys_are_tame(work);
        }
      }
      if (more) {
        follow_head(factors, work);
        filling.follow(rings.tables(), work.base(args.attention), args.attention.score, threadIdx.x - 128, 128 * kConsumers, kTableBarrier);
      }
      // Before dQ is added, which takes long to read its registers: the address of a barrier would get one of them and wait, and the scores behind it.
      if (more) {
        rings.query.wait_full(tile + 1);
        if constexpr (kKindAhead) kind = kind_of(partial, tile + 1);
      }
      ScoreOperands next{};
      if constexpr (kOperandsAhead) next = operands_of_scores(tile + 1);
      wgmma_wait<1>();
      wgmma_pin(dq);
      if (leader) rings.grad_out.release(tile);
      if constexpr (kReproducible) rings.turn.wait_full(tile);
      add_dq(sum, 64 * kPartColumns * group, dq);
      if constexpr (kReproducible) release(rings.turn, tile);
      wgmma_wait<0>();
      wgmma_pin(dk);
      wgmma_pin(dv);
      if (leader) rings.query.release(tile);
      ++tile;
      if (!more) break;
      start_scores(scores, kOperandsAhead ? next : operands_of_scores(tile));
    }
    add_gradients_of_dk(work, dk);
    if (leader) rings.key.release(use);
  }
};

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 1)
    backward_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  foveal::device::run_groups<foveal::device::Consumer>(args);
}
