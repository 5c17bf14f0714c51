// Attention forward for Hopper with fewer queries than a tile has rows: decode and short prefill. Keys and values are what takes time, so that the heads that share
// them are rows of one tile (tile/packed_rows.cuh), loads run as many stages ahead as fit, and where these are few tasks, several take a part each of the keys
// (kSplit), of which kernels/merge_splits_sm90.cuh makes one result. One warp loads, one or two warpgroups of 64 rows compute.
//
// config.cuh: as for kernels/forward_sm90.cuh, but for kPairStages and kDropout, 0 and false; kPackedHeads, kSplit.
#include "ptx/dependent_launch.cuh"
#include "tile/decode_end.cuh"
#include "tile/forward_cta.cuh"
#include "tile/forward_phases.cuh"

namespace foveal::device {

static_assert(kFewQueries && !kDropout && !kPart && kPairReads == 0 && kPairTiles == 0 && kTables == 0 && !kOffsetsInScores);
static_assert(kPackedHeads == 1 || !kHasLines, "lines are those of one head");

/// One warpgroup: 64 rows of every task.
struct Consumer : ForwardPhases<DecodeEnd> {
  using ForwardPhases::ForwardPhases;

  FOVEAL_DEVICE void run() const {
    Place at(kEveryLaneArrives || thread == 0);
    Registers r;
    // Inlined later than a function: called as that, some tiles spilled.
    const auto probabilities = [&] { take_probabilities(at, r); };

    // As in kernels/forward_sm90.cuh, without what only that has.
    const auto step = [&](auto inside) {
      constexpr bool kInside = decltype(inside)::value;
      constexpr bool kValuesFirst = !kInside && !kQueriesAhead;
      at.started = kInside || at.round >= 0;
      Ending ending;
      if constexpr (kValuesFirst) issue_values(at, r, at.tile);
      if (!kInside && at.new_task) {
        ending = begin_task(at, r);
      } else {
        ++at.tile;
      }

      // S' = Q K'^T of this tile and O += P V of the one before are under way together.
      rings.key.wait_full(at.tile);
      await_turn();
      issue_scores(at, r);
      if constexpr (!kValuesFirst) issue_values(at, r, at.tile - 1);
      pass_turn();
      if constexpr (kLooksAhead) r.lasted = lasts(r.softmax);
      if constexpr (kGuesses) r.guessing = r.guesses && r.softmax.is_unshifted();

      // Scores: S' is there, or with values first O.
      wgmma_wait<1>();
      if constexpr (kValuesFirst) {
        take_values<kInside, false>(at, r, ending);
        wgmma_wait<0>();
      }
      take_products(at, r);
      take_scores(at, r, !kInside && (kPartialOutside || at.partial));
      // Softmax, beside O += P V or after it, and values: O is there, and rescaled where a maximum rose.
      if constexpr (kOrdered) {
        take_exponentials(at, r);
        r.softmax.complete();
      }
      if constexpr (!kValuesFirst) {
        wgmma_wait<0>();
        take_values<kInside, true>(at, r, ending);
      }
      if (kValuesFirst && !at.new_task && r.rescales) rescale_out(r);
      if constexpr (kOrdered) {
        pack_fragment<Element>(r.p, r.scores);
      } else {
        probabilities();
      }
    };

    for (;;) {
      at.round = at.next_round;
      if (!advance(at.next, at.next_round, at.partial, at.new_task)) break;
      step(Constant<false>{});
      if constexpr (kSource != TileSource::list) {
        while (at.next.next_full_tile()) step(Constant<true>{});
      }
    }
    end_last_task(at, r);
  }
};

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 1)
    decode_sm90(const __grid_constant__ foveal::device::ForwardArgs args) {
  using namespace foveal::device;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Rings rings(shared);
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  begin_cta(rings);
  await_previous_launch();
  if (kSplit && blockIdx.x == 0 && threadIdx.x == 0) *args.split_exponent = score_exponent(args, args.scale);
  PackedRows::clear_rest(rings);
  __syncthreads();
  run_cta<Consumer, PackedRows>(args, rings, warp_group);
}
