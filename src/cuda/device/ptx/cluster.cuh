#pragma once
// CTAs of a cluster: they run at the same time and reach each other's shared memory.
#include "ptx/mbarrier.cuh"

namespace foveal::device {

/// By all threads of all CTAs of the cluster; what they wrote before is seen after it.
FOVEAL_DEVICE void cluster_sync() { asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory"); }

/// The place of a shared-memory address in another CTA.
FOVEAL_DEVICE u32 address_in_cta(u32 address, u32 rank) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

/// At a barrier of another CTA, once products or copies have read what it guards: orders no ordinary accesses, for which it would wait until all earlier
/// additions to global memory are done.
FOVEAL_DEVICE void mbarrier_arrive_there(u32 barrier_there) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier_there) : "memory");
}

/// Copies to the shared memory of another CTA, `bytes` a multiple of 16; completes on a barrier there.
FOVEAL_DEVICE void bulk_copy_there(u32 there, u32 from, u32 bytes, u32 barrier_there) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(there), "r"(from),
               "r"(bytes), "r"(barrier_there)
               : "memory");
}

}  // namespace foveal::device
