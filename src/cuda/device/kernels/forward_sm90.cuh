// Fused attention forward for Hopper, 16-bit types: one warp loads tiles by TMA, two or three warpgroups of 64 queries compute. Few queries have a kernel of
// their own, kernels/decode_sm90.cuh.
//
// Each warpgroup keeps two products in flight: while the tensor cores do S' = Q K'^T of the next kv tile and O += P V of this one, the
// softmax of the other warpgroups fills the other units; named barriers take turns at issuing (kTakeTurns). Tasks follow each other without a
// seam: the first product of the next task is issued together with the last one of this task.
//
// config.cuh: Element, SeqlenIndex; kHeadDim, kHeadDimV (multiples of 8), kBlockKv (of 16), kConsumers, kStages, kQueryStages, kProducerRegisters,
// kConsumerRegisters, kTileSource (a TileSource), kPairStages; kTakeTurns, kOrdered, kVarlen, kKeyRows, kPageSize, SeqlenKvIndex, kDropout; kFewQueries,
// kPackedHeads and kSplit, which are for the other kernel: false, 1 and false.
#include "tile/forward_cta.cuh"
#include "tile/forward_epilogue.cuh"
#include "tile/forward_phases.cuh"

namespace foveal::device {

static_assert(!kFewQueries && kPackedHeads == 1 && !kSplit);

/// One warpgroup: 64 queries of every task.
struct Consumer : ForwardPhases<ForwardEpilogue> {
  using ForwardPhases::ForwardPhases;

  FOVEAL_DEVICE void run() const {
    MainloopState state(kEveryLaneArrives || thread == 0);
    Fragments r;
    TableLoader tables(offset_scale());
    // Inlined later than functions: called as those, some tiles spilled, and capped scores of partial tiles took longer.
    const auto scores = [&](auto inside, bool partial) {
      finish_qk(state, r);
      if constexpr (kOffsetsInScores) complete_products(r.scores, r.head, state.next, state.tile, !decltype(inside)::value && is_exact());
      apply_score_mod(state, r, partial);
    };
    const auto probabilities = [&] { compute_p(state, r); };

    // The scores of a tile beside the values of the tile before. inside: the tile is full, and of the same task as that one. What remains then is short:
    // rare paths are kept out of line, to avoid misses of the instruction cache. Otherwise queries may have to come first, for which values do not
    // wait, and while they do the output is written.
    const auto step = [&](auto inside) {
      constexpr bool kInside = decltype(inside)::value;
      constexpr bool kPvFirst = !kInside && !kQueriesAhead;
      state.started = kInside || state.round >= 0;
      EpilogueState epilogue;
      if constexpr (kPvFirst) issue_pv(state, r, state.tile);
      if (!kInside && state.new_task) {
        epilogue = begin_task(state, r);
      } else {
        ++state.tile;
      }
      if constexpr (kOffsetsFirst) {
        if (!kInside && state.new_task) update_tables(state.next, tables);
        begin_products(r.scores, r.head, state.next, state.tile, !kInside && (kSource != TileSource::list || state.partial),
                       !kInside && is_exact());
      }
      if constexpr (kOffsetsAreColumns) pipelines.line_values.consumer_wait(state.tile);

      // S' = Q K'^T of this tile and O += P V of the one before are under way together.
      pipelines.key.consumer_wait(state.tile);
      scheduler_barrier_sync();
      issue_qk(state, r);
      if constexpr (!kPvFirst) issue_pv(state, r, state.tile - 1);
      scheduler_barrier_arrive();
      if (!kOffsetsFirst && !kInside && state.new_task) update_tables(state.next, tables);
      prefetch_pairs(r.prefetched, state.next, !kInside && state.partial, !kInside && state.new_task);
      if constexpr (kChecksMaxEarly) r.max_held = max_holds(r.softmax);
      if constexpr (kGuesses) r.guessing = r.guesses && r.softmax.is_unshifted();

      // Scores: S' is there, or with values first O.
      wgmma_wait<1>();
      if constexpr (kPvFirst) {
        finish_pv<kInside, false>(state, r, epilogue);
        wgmma_wait<0>();
      }
      scores(inside, !kInside && (kPartialOutside || state.partial));
      // Softmax, beside O += P V or after it, and values: O is there, and rescaled where a maximum rose.
      if constexpr (kOrdered) {
        exponentiate(state, r);
        r.softmax.complete();
      }
      if constexpr (!kPvFirst) {
        wgmma_wait<0>();
        finish_pv<kInside, true>(state, r, epilogue);
      }
      if (kPvFirst && !state.new_task && r.rescales) rescale_out(r);
      if constexpr (kOrdered) {
        pack_fragment<Element>(r.p, r.scores);  // not before the conditions: where these end a step, the compiler thinks that lanes part
      } else {
        probabilities();
      }
    };

    for (;;) {
      state.round = state.next_round;
      if (!advance(state.next, state.next_round, state.partial, state.new_task)) break;
      step(Constant<false>{});
      if constexpr (kOffsetsInScores) {
        if (is_exact()) continue;
      }
      if constexpr (kSource != TileSource::list) {  // whose tiles are too seldom full
        while (state.next.next_full_tile()) step(Constant<true>{});
      }
    }
    finish_last_task(state, r);
  }
};

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 1)
    forward_sm90(const __grid_constant__ foveal::device::ForwardArgs args) {
  using namespace foveal::device;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Pipelines pipelines(shared);
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  begin_cta(pipelines);
  __syncthreads();
  run_cta<Consumer, HeadRows>(args, pipelines, warp_group);
}
