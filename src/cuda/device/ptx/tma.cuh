#pragma once
// TMA: box copies by tensor map, and bulk copies of contiguous bytes.
#include "sm90_args.cuh"
#include "ptx/mbarrier.cuh"

namespace foveal::device {

FOVEAL_DEVICE void tma_prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

/// Loads the box at (column, row, head, batch) into shared memory; out-of-bounds elements are zero-filled; completes on `barrier`.
FOVEAL_DEVICE void tma_load(u32 destination, const TensorMap& map, u32 barrier, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
                   destination),
               "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}

/// The same with a five-dimensional map, whose second dimension is the head within its group (GQA packing).
FOVEAL_DEVICE void tma_load(u32 destination, const TensorMap& map, u32 barrier, int column, int place, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(
          destination),
      "l"(&map), "r"(barrier), "r"(column), "r"(place), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

/// Loads `bytes` contiguous bytes; size and both addresses are multiples of 16.
FOVEAL_DEVICE void bulk_load(u32 destination, const void* source, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination), "l"(source),
               "r"(bytes), "r"(barrier)
               : "memory");
}

}  // namespace foveal::device
