// Attention forward for Hopper with fewer queries than tile rows: decode and short prefill, bound by the loads of K and V. Query heads that
// share keys are packed into one tile (tile/packed_rows.cuh), loads run as many stages ahead as fit, and if there are few tasks, the keys
// are split over several (split-KV), which kernels/merge_splits_sm90.cuh merges. One warp loads, one or two warpgroups of 64 rows
// compute.
//
// config.cuh: kProblem, kConfig (a ForwardConfig).
#include "ptx/dependent_launch.cuh"
#include "tile/decode_epilogue.cuh"
#include "tile/forward_cta.cuh"
#include "tile/forward_phases.cuh"

namespace foveal::device {

static_assert(kConfig.is_decode() && !kProblem.dropout && !kProblem.part && kPairReads == 0 && kPairTiles == 0 && kTables == 0 &&
              !kOffsetsInScores);
static_assert(kConfig.packed_heads == 1 || !kHasLines, "lines are those of one head");

/// One warpgroup: 64 rows of every task.
struct Consumer : ForwardPhases<DecodeEpilogue> {
  using ForwardPhases::ForwardPhases;

  FOVEAL_DEVICE void run() const {
    MainloopState state(kEveryLaneArrives || thread == 0);
    Fragments r;
    // A lambda is inlined later than a function: as functions, some tiles spilled.
    const auto probabilities = [&] { compute_p(state, r); };

    // As in kernels/forward_sm90.cuh, less what only that needs.
    const auto step = [&](auto inside) {
      constexpr bool kInside = decltype(inside)::value;
      constexpr bool kPvFirst = !kInside && !kPrefetchesQueries;
      state.started = kInside || state.round >= 0;
      EpilogueState epilogue;
      if constexpr (kPvFirst) issue_pv(state, r, state.tile);
      if (!kInside && state.new_task) {
        epilogue = begin_task(state, r);
      } else {
        ++state.tile;
      }

      // S' = Q K'^T of this tile and O += P V of the previous one are in flight together.
      pipelines.key.consumer_wait(state.tile);
      scheduler_barrier_sync();
      issue_qk(state, r);
      if constexpr (!kPvFirst) issue_pv(state, r, state.tile - 1);
      scheduler_barrier_arrive();
      if constexpr (kChecksMaxEarly) r.max_held = max_holds(r.softmax);
      if constexpr (kGuesses) r.guessing = r.guesses && r.softmax.is_unshifted();

      // Scores: S' has arrived, or, with P V first, O.
      wgmma_wait<1>();
      if constexpr (kPvFirst) {
        finish_pv<kInside, false>(state, r, epilogue);
        wgmma_wait<0>();
      }
      finish_qk(state, r);
      apply_score_mod(state, r, !kInside && (kPartialOutside || state.partial));
      // Softmax, overlapped with O += P V or after it; then O has arrived and is rescaled if a maximum rose.
      if constexpr (kConfig.intra_warpgroup_overlap) {
        exponentiate(state, r);
        r.softmax.complete();
      }
      if constexpr (!kPvFirst) {
        wgmma_wait<0>();
        finish_pv<kInside, true>(state, r, epilogue);
      }
      if (kPvFirst && !state.new_task && r.rescales) rescale_out(r);
      if constexpr (kConfig.intra_warpgroup_overlap) {
        pack_fragment<Element>(r.p, r.scores);
      } else {
        probabilities();
      }
    };

    for (;;) {
      state.round = state.next_round;
      if (!advance(state.next, state.next_round, state.partial, state.new_task)) break;
      step(Constant<false>{});
      if constexpr (kSource != TileSource::list) {
        while (state.next.next_full_tile()) step(Constant<true>{});
      }
    }
    finish_last_task(state, r);
  }
};

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 1)
    decode_sm90(const __grid_constant__ foveal::device::ForwardArgs args) {
  using namespace foveal::device;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Pipelines pipelines(shared);
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  begin_cta(pipelines);
  await_previous_launch();
  if (kConfig.split_kv && blockIdx.x == 0 && threadIdx.x == 0) *args.split_exponent = score_exponent(args, args.scale);
  PackedRows::clear_leftover_rows(pipelines);
  __syncthreads();
  run_cta<Consumer, PackedRows>(args, pipelines, warp_group);
}
