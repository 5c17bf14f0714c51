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
#include "tile/forward_end.cuh"
#include "tile/forward_phases.cuh"

namespace foveal::device {

static_assert(!kFewQueries && kPackedHeads == 1 && !kSplit);

/// One warpgroup: 64 queries of every task.
struct Consumer : ForwardPhases<ForwardEnd> {
  using ForwardPhases::ForwardPhases;

  FOVEAL_DEVICE void run() const {
    Place at(kEveryLaneArrives || thread == 0);
    Registers r;
    TableFilling tables(offset_scale());
    // Inlined later than functions: called as those, some tiles spilled, and capped scores of partial tiles took longer.
    const auto scores = [&](auto inside, bool partial) {
      take_products(at, r);
      if constexpr (kOffsetsInScores) complete_products(r.scores, r.head, at.next, at.tile, !decltype(inside)::value && is_exact());
      take_scores(at, r, partial);
    };
    const auto probabilities = [&] { take_probabilities(at, r); };

    // The scores of a tile beside the values of the tile before. inside: the tile is full, and of the same task as that one. What remains then is short:
    // rare paths are kept out of line, to avoid misses of the instruction cache. Otherwise queries may have to come first, for which values do not
    // wait, and while they do the output is written.
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
      if constexpr (kOffsetsFirst) {
        if (!kInside && at.new_task) follow_tables(at.next, tables);
        begin_products(r.scores, r.head, at.next, at.tile, !kInside && (kSource != TileSource::list || at.partial), !kInside && is_exact());
      }
      if constexpr (kOffsetsAreColumns) rings.line_values.wait_full(at.tile);

      // S' = Q K'^T of this tile and O += P V of the one before are under way together.
      rings.key.wait_full(at.tile);
      await_turn();
      issue_scores(at, r);
      if constexpr (!kValuesFirst) issue_values(at, r, at.tile - 1);
      pass_turn();
      if (!kOffsetsFirst && !kInside && at.new_task) follow_tables(at.next, tables);
      load_ahead(r.ahead, at.next, !kInside && at.partial, !kInside && at.new_task);
      if constexpr (kLooksAhead) r.lasted = lasts(r.softmax);
      if constexpr (kGuesses) r.guessing = r.guesses && r.softmax.is_unshifted();

      // Scores: S' is there, or with values first O.
      wgmma_wait<1>();
      if constexpr (kValuesFirst) {
        take_values<kInside, false>(at, r, ending);
        wgmma_wait<0>();
      }
      scores(inside, !kInside && (kPartialOutside || at.partial));
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
        pack_fragment<Element>(r.p, r.scores);  // not before the conditions: where these end a step, the compiler thinks that lanes part
      } else {
        probabilities();
      }
    };

    for (;;) {
      at.round = at.next_round;
      if (!advance(at.next, at.next_round, at.partial, at.new_task)) break;
      step(Constant<false>{});
      if constexpr (kOffsetsInScores) {
        if (is_exact()) continue;
      }
      if constexpr (kSource != TileSource::list) {  // whose tiles are too seldom full
        while (at.next.next_full_tile()) step(Constant<true>{});
      }
    }
    end_last_task(at, r);
  }
};

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 1)
    forward_sm90(const __grid_constant__ foveal::device::ForwardArgs args) {
  using namespace foveal::device;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Rings rings(shared);
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  begin_cta(rings);
  __syncthreads();
  run_cta<Consumer, HeadRows>(args, rings, warp_group);
}
