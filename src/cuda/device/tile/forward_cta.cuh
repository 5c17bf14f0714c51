#pragma once
// The warps of a CTA of the forward kernels: one warpgroup loads, the others compute. All of them do some tasks again where a sum overflowed.
#include "tile/forward_loads.cuh"
#include "tile/forward_scores.cuh"

namespace foveal::device {

FOVEAL_DEVICE void init_barriers(const Rings& rings) {
  rings.query.init(1, arrivals_of_groups(kConsumers));
  rings.key.init(1, arrivals_of_groups(kConsumers));
  rings.value.init(1, arrivals_of_groups(kConsumers));
  if constexpr (kHasLines) rings.line_values.init(arrivals_of_warps(1), arrivals_of_warps(4 * kConsumers));
  if constexpr (kPairTiles > 0) rings.pairs.ring.init(1, arrivals_of_warps(4 * kConsumers));
  fence_mbarrier_init();
}

FOVEAL_DEVICE void begin_cta(const Rings& rings) {
  if (threadIdx.x != 0) return;
  init_barriers(rings);
  rings.set_maxima(kAnyExponent ? Maxima::first : Maxima::all);
  for (int word = 0; word < ForwardLayout::kAgainWords; ++word) store_word(rings.base + kShared.again + 4 * word, 0);
}

/// By all threads, when everything is done: has some of it to be done again? Seldom: a score exceeded the maximum that its row knew by a factor of 2^43 at least, or
/// ForwardPhases::fails.
FOVEAL_DEVICE bool repeats(const Rings& rings) {
  if constexpr (!kAnyExponent) return false;
  named_barrier_sync(kEndBarrier, kThreads);
  if (rings.maxima() != Maxima::too_low) return false;
  named_barrier_sync(kEndBarrier, kThreads);
  if (threadIdx.x == 0) {
    for (u32 barrier = rings.query.address; barrier < rings.base + kShared.maxima; barrier += 8) mbarrier_invalidate(barrier);
    init_barriers(rings);
    rings.set_maxima(Maxima::all);
  }
  named_barrier_sync(kEndBarrier, kThreads);
  return true;
}

/// By all threads, after begin_cta and a barrier. Consumer: a warpgroup of these rows, which runs through all tasks.
template <class Consumer, class TileRows>
FOVEAL_DEVICE void run_cta(const ForwardArgs& args, const Rings& rings, int warp_group) {
  if (warp_group == 0) {
    registers_decrease<kProducerRegisters>();
    do {
      if (loads()) produce<TileRows>(args, rings);
      if constexpr (kHasLines) {
        if (warp_id() == 1) evaluate_lines(args, rings);
      }
      __syncwarp();
    } while (repeats(rings));
  } else {
    registers_increase<kConsumerRegisters>();
    const Consumer consumer(args, rings, warp_group - 1);
    consumer.open_turns();
    if constexpr (kOffsetsInScores) {
      do {
        Consumer(args, rings, warp_group - 1).run();
      } while (repeats(rings));
    } else {
      do {
        consumer.run();
      } while (repeats(rings));
    }
  }
}

}  // namespace foveal::device
