// Fused attention forward for Hopper, 16-bit types: one producer warp loads tiles by TMA, two or three consumer warpgroups compute 64
// queries each. Few queries have their own kernel, kernels/decode_sm90.cuh.
//
// Each warpgroup keeps two products in flight, S' = Q K'^T of the next kv tile and O += P V of this one, while the softmax of the other
// warpgroups uses the other units: ping-pong scheduling by named barriers. Tasks are pipelined without a bubble: the first
// product of the next task is issued together with the last one of this task.
//
// config.cuh: kProblem, kConfig (a ForwardConfig).
#include "tile/forward_cta.cuh"
#include "tile/forward_epilogue.cuh"
#include "tile/forward_phases.cuh"

namespace foveal::device {

static_assert(!kConfig.is_decode() && !kConfig.split_kv);

/// One warpgroup: 64 queries of every task.
struct Consumer : ForwardPhases<ForwardEpilogue> {
  using ForwardPhases::ForwardPhases;

  FOVEAL_DEVICE void run() const {
    MainloopState state(kEveryLaneArrives || thread == 0);
    Fragments r;
    TableLoader tables(offset_scale());
    // Lambdas are inlined later than functions: as functions, some tiles spilled, and capped scores of partial tiles were slower.
    const auto scores = [&](auto inside, bool partial) {
      finish_qk(state, r);
      if constexpr (kOffsetsInScores) complete_products(r.scores, r.head, state.next, state.tile, !decltype(inside)::value && is_exact());
      apply_score_mod(state, r, partial);
    };
    const auto probabilities = [&] { compute_p(state, r); };

    // Scores of one tile and values of the previous one. inside: the tile is full and of the same task as the previous one; that code is
    // short, with rare paths out of line to avoid instruction-cache misses. Otherwise Q may have to arrive first; P V does not wait for it,
    // and the output is written meanwhile.
    // more: there is a tile; if not, the last task ends.
    const auto step = [&](auto inside, bool more) {
      constexpr bool kInside = decltype(inside)::value;
      constexpr bool kPvFirst = !kInside && !kPrefetchesQueries;
      // The end of the last task shares what precedes the products; what follows them too where no register spills and the compiler does
      // not make two copies of the probabilities then.
      constexpr bool kEndsHere = !kInside && kEndsInStep, kSharesOutput = kEndsHere && kConfig.intra_warpgroup_overlap && !kPvFirst;
      state.started = kInside || state.round >= 0;
      EpilogueState epilogue;
      if constexpr (kPvFirst) issue_pv(state, r, state.tile);
      if (!kInside && state.new_task) {
        epilogue = begin_task(state, r, more);
      } else {
        ++state.tile;
      }
      const auto last_product = [&] {
        if constexpr (!kPvFirst) issue_pv(state, r, state.tile - 1);
        wgmma_wait<0>();
      };
      if (kEndsHere && !kSharesOutput && !more) {
        last_product();
        finish_pv<false, !kPvFirst>(state, r, epilogue);
        return;
      }
      const auto products = [&] {
        if constexpr (kOffsetsFirst) {
          if (!kInside && state.new_task) update_tables(state.next, tables);
          begin_products(r.scores, r.head, state.next, state.tile, !kInside && (kSource != TileSource::list || state.partial),
                         !kInside && is_exact());
        }
        if constexpr (kOffsetsAreColumns) pipelines.line_values.consumer_wait(state.tile);

        // S' = Q K'^T of this tile and O += P V of the previous one are in flight together.
        pipelines.key.consumer_wait(state.tile);
        scheduler_barrier_sync();
        issue_qk(state, r);
        if constexpr (!kPvFirst) issue_pv(state, r, state.tile - 1);
        scheduler_barrier_arrive();
        if (!kOffsetsFirst && !kInside && state.new_task) update_tables(state.next, tables);
        prefetch_pairs(r.prefetched, state.next, !kInside && state.partial, !kInside && state.new_task);
        if constexpr (kChecksMaxEarly) r.max_held = max_holds(r.softmax);
        if constexpr (kGuesses) r.guessing = r.guesses && r.softmax.is_unshifted();

        // Scores: S' has arrived, or, with P V first, O.
        wgmma_wait<1>();
        if constexpr (kPvFirst) {
          finish_pv<kInside, false>(state, r, epilogue);
          wgmma_wait<0>();
        }
        scores(inside, !kInside && (kPartialOutside || state.partial));
        // Softmax, overlapped with O += P V or after it; then O has arrived and is rescaled if a maximum rose.
        if constexpr (kConfig.intra_warpgroup_overlap) {
          exponentiate(state, r);
          r.softmax.complete();
        }
        if constexpr (!kPvFirst) wgmma_wait<0>();
      };
      if (!kSharesOutput || more) {
        products();
      } else {
        last_product();
      }
      if constexpr (!kPvFirst) {
        finish_pv<kInside, true>(state, r, epilogue);
      }
      if (kSharesOutput && !more) return;
      if (kPvFirst && !state.new_task && r.rescales) rescale_out(r);
      if constexpr (kConfig.intra_warpgroup_overlap) {
        pack_fragment<Element>(r.p, r.scores);  // after the conditions above: at the end of a step they make the compiler assume divergence
      } else {
        probabilities();
      }
    };

    for (;;) {
      state.round = state.next_round;
      const bool more = advance(state.next, state.next_round, state.partial, state.new_task);
      if (!more && (!kEndsInStep || state.round < 0)) break;
      if (kEndsInStep && !more) state.new_task = true;
      step(Constant<false>{}, more);
      if (kEndsInStep && !more) return;
      if constexpr (kOffsetsInScores) {
        if (is_exact()) continue;
      }
      if constexpr (kSource != TileSource::list) {  // lists seldom have full tiles in a row
        while (state.next.next_full_tile()) step(Constant<true>{}, true);
      }
    }
    if constexpr (!kEndsInStep) finish_last_task(state, r);
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
