#pragma once
// The bulk tensor copy engine.
#include "sm90_args.cuh"
#include "ptx/mbarrier.cuh"

namespace foveal::device {

FOVEAL_DEVICE void tma_prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

/// Box at (column, row, head, batch) to shared memory; elements outside the tensor arrive as zeros; completes on `barrier`.
FOVEAL_DEVICE void tma_load(u32 destination, const TensorMap& map, u32 barrier, int column, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

/// `bytes` consecutive bytes, a multiple of 16 with both addresses aligned to 16.
FOVEAL_DEVICE void bulk_load(u32 destination, const void* source, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination), "l"(source),
               "r"(bytes), "r"(barrier)
               : "memory");
}

/// Adds `bytes` consecutive bytes of floats in shared memory to global memory.
FOVEAL_DEVICE void bulk_add_f32(void* destination, u32 source, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(destination), "r"(source), "r"(bytes) : "memory");
}

FOVEAL_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// All but the latest `pending` groups have read their shared memory.
template <int pending>
FOVEAL_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
/// All but the latest `pending` groups are complete in global memory.
template <int pending>
FOVEAL_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace foveal::device
