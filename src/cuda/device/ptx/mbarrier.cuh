#pragma once
// mbarriers in shared memory (phase bit, transaction bytes), the sixteen named barriers of a CTA, and pipelines built on mbarriers.
#include "base.cuh"

namespace foveal::device {

FOVEAL_DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

FOVEAL_DEVICE void mbarrier_invalidate(u32 barrier) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory"); }

FOVEAL_DEVICE void mbarrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }

FOVEAL_DEVICE void mbarrier_arrive_expect_bytes(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// Waits for completion of the phase with this parity; a fresh barrier has completed parity 1.
FOVEAL_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Makes mbarrier initialisation visible to the async proxy; a __syncthreads() must follow.
FOVEAL_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// Makes earlier generic-proxy accesses visible to the async proxy (wgmma, TMA): of all memory here, of shared memory below.
FOVEAL_DEVICE void fence_async_proxy_of_all_memory() { asm volatile("fence.proxy.async;" ::: "memory"); }
FOVEAL_DEVICE u32 load_acquire_system(const u32* word) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
FOVEAL_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

FOVEAL_DEVICE void named_barrier_sync(u32 id, u32 threads) { asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
FOVEAL_DEVICE void named_barrier_arrive(u32 id, u32 threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int count>
FOVEAL_DEVICE void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
FOVEAL_DEVICE void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

/// Full and empty barriers of a pipeline of buffers, 8 bytes each, at `address`. `use` counts monotonically: use n is in stage n % stages,
/// and its phase follows from n (CUTLASS: PipelineState).
template <int stages>
struct Pipeline {
  u32 address;
  static constexpr int kBytes = 2 * stages * 8;
  FOVEAL_DEVICE static u32 index(u32 use) { return use % stages; }
  FOVEAL_DEVICE u32 full_barrier(u32 use) const { return address + 8 * index(use); }
  FOVEAL_DEVICE u32 empty_barrier(u32 use) const { return address + 8 * (stages + index(use)); }
  FOVEAL_DEVICE void consumer_wait(u32 use) const { mbarrier_wait(full_barrier(use), use / stages & 1); }
  FOVEAL_DEVICE void producer_acquire(u32 use) const { mbarrier_wait(empty_barrier(use), (use / stages & 1) ^ 1); }
  FOVEAL_DEVICE void consumer_release(u32 use) const { mbarrier_arrive(empty_barrier(use)); }
  FOVEAL_DEVICE void init(u32 full_arrivals, u32 empty_arrivals) const {
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(full_barrier(i), full_arrivals);
      mbarrier_init(empty_barrier(i), empty_arrivals);
    }
  }
};

/// One elected lane arrives for its warp or warpgroup. racecheck does not see the ordering between lanes; in builds for it every lane
/// arrives.
#ifdef FOVEAL_EVERY_LANE_ARRIVES
constexpr bool kEveryLaneArrives = true;
#else
constexpr bool kEveryLaneArrives = false;
#endif
constexpr u32 arrivals_of_warps(u32 warps) { return kEveryLaneArrives ? 32 * warps : warps; }
constexpr u32 arrivals_of_groups(u32 groups) { return kEveryLaneArrives ? 128 * groups : groups; }

/// Warp-collective: releases a buffer that the warp has read.
template <int stages>
FOVEAL_DEVICE void consumer_release(const Pipeline<stages>& pipeline, u32 use) {
  __syncwarp();
  if (kEveryLaneArrives || lane_id() == 0) pipeline.consumer_release(use);
}

/// The same for a buffer that was read by ordinary loads and is refilled by TMA: the loads may still be in flight, and the mbarrier alone
/// does not order them before writes of the async proxy (PTX ISA, async proxy).
template <int stages>
FOVEAL_DEVICE void consumer_release_loaded(const Pipeline<stages>& pipeline, u32 use) {
  fence_async_proxy();
  consumer_release(pipeline, use);
}

/// Warp-collective: publishes a buffer that the warp has written.
template <int stages>
FOVEAL_DEVICE void producer_commit(const Pipeline<stages>& pipeline, u32 use) {
  __syncwarp();
  if (kEveryLaneArrives || lane_id() == 0) mbarrier_arrive(pipeline.full_barrier(use));
}

}  // namespace foveal::device
