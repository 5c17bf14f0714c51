#pragma once
// Warp specialisation of the forward kernels: a producer warpgroup and the consumers. After the last task, all of them redo tasks whose
// sums overflowed.
#include "tile/forward_loads.cuh"
#include "tile/forward_scores.cuh"

namespace foveal::device {

FOVEAL_DEVICE void init_barriers(const Pipelines& pipelines) {
  pipelines.query.init(1, arrivals_of_groups(kConfig.consumers));
  pipelines.key.init(1, arrivals_of_groups(kConfig.consumers));
  pipelines.value.init(1, arrivals_of_groups(kConfig.consumers));
  if constexpr (kHasLines) pipelines.line_values.init(arrivals_of_warps(1), arrivals_of_warps(4 * kConfig.consumers));
  if constexpr (kPairTiles > 0) pipelines.pairs.pipeline.init(1, arrivals_of_warps(4 * kConfig.consumers));
  fence_mbarrier_init();
}

FOVEAL_DEVICE void begin_cta(const Pipelines& pipelines) {
  if (threadIdx.x != 0) return;
  init_barriers(pipelines);
  pipelines.set_max_policy(kWideRange ? MaxPolicy::first_tile : MaxPolicy::every_tile);
  for (int word = 0; word < ForwardLayout::kRedoWords; ++word) store_word(pipelines.base + kShared.redo + 4 * word, 0);
}

/// Called by all threads at the end: must tasks be redone? Rare: a score exceeded the known maximum of its row by a factor of at least
/// 2^43, or ForwardPhases::needs_redo.
FOVEAL_DEVICE bool begin_redo(const Pipelines& pipelines) {
  if constexpr (!kWideRange) return false;
  named_barrier_sync(kEndBarrier, kThreads);
  if (pipelines.max_policy() != MaxPolicy::overflowed) return false;
  named_barrier_sync(kEndBarrier, kThreads);
  if (threadIdx.x == 0) {
    for (u32 barrier = pipelines.query.address; barrier < pipelines.base + kShared.max_policy; barrier += 8) mbarrier_invalidate(barrier);
    init_barriers(pipelines);
    pipelines.set_max_policy(MaxPolicy::every_tile);
  }
  named_barrier_sync(kEndBarrier, kThreads);
  return true;
}

/// Called by all threads after begin_cta and a barrier. Consumer: a warpgroup that runs through all tasks.
template <class Consumer, class TileRows>
FOVEAL_DEVICE void run_cta(const ForwardArgs& args, const Pipelines& pipelines, int warp_group) {
  if (warp_group == 0) {
    registers_decrease<kConfig.producer_registers(kHasLines, kLooksUp)>();
    do {
      if (is_loader()) produce<TileRows>(args, pipelines);
      if constexpr (kHasLines) {
        if (warp_id() == 1) evaluate_lines(args, pipelines);
      }
      __syncwarp();
    } while (begin_redo(pipelines));
  } else {
    registers_increase<kConfig.consumer_registers(kHasLines, kLooksUp)>();
    const Consumer consumer(args, pipelines, warp_group - 1);
    consumer.scheduler_barrier_init();
    if constexpr (kOffsetsInScores) {
      do {
        Consumer(args, pipelines, warp_group - 1).run();
      } while (begin_redo(pipelines));
    } else {
      do {
        consumer.run();
      } while (begin_redo(pipelines));
    }
  }
}

}  // namespace foveal::device
