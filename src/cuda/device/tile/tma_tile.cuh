#pragma once
// Tiles from global to shared memory by the copy engine.
#include "ptx/tma.cuh"
#include "tile/swizzled_tile.cuh"

namespace foveal::device {

/// A tile of `rows` x `columns` at (row, head, batch); completes with tile_bytes(rows, columns) on `barrier`.
template <int rows, int columns>
FOVEAL_DEVICE void load_tile(u32 destination, const TensorMap& map, u32 barrier, int row, int head, int batch) {
#pragma unroll
  for (int chunk = 0; chunk < chunk_count(columns); ++chunk) {
    tma_load(destination + chunk * rows * kChunkRowBytes, map, barrier, chunk * kChunkColumns, row, head, batch);
  }
}

}  // namespace foveal::device
