#pragma once
// Thread block clusters: CTAs that are co-scheduled and can address each other's shared memory.
#include "ptx/mbarrier.cuh"

namespace foveal::device {

/// Called by all threads of the cluster; orders all earlier memory accesses.
FOVEAL_DEVICE void cluster_sync() { asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory"); }

/// Maps a shared-memory address to the same address in another CTA.
FOVEAL_DEVICE u32 address_in_cta(u32 address, u32 rank) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

/// Arrives at a barrier of another CTA. Not a release at cluster scope: the barrier guards operands of wgmma and bulk copies only, and such
/// a release would wait for all earlier atomic additions to global memory.
FOVEAL_DEVICE void mbarrier_arrive_there(u32 barrier_there) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier_there) : "memory");
}

/// Copies to another CTA's shared memory (distributed shared memory); `bytes` is a multiple of 16; completes on a barrier there.
FOVEAL_DEVICE void bulk_copy_there(u32 there, u32 from, u32 bytes, u32 barrier_there) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(there), "r"(from),
               "r"(bytes), "r"(barrier_there)
               : "memory");
}

}  // namespace foveal::device
