#pragma once
// Tiles from global to shared memory by the copy engine.
#include "ptx/tma.cuh"
#include "tile/swizzled_tile.cuh"

namespace foveal::device {

/// A tile of `rows` x `columns` at (row, head, batch); completes with tile_bytes(rows, columns) on `barrier`, as many chunks as it has.
template <int rows, int columns, int chunk_step = kChunkColumns>
FOVEAL_DEVICE void load_tile(u32 destination, const TensorMap& map, u32 barrier, int row, int head, int batch) {
  static_assert(chunk_count(columns, chunk_step) == chunk_count(columns));
#pragma unroll
  for (int chunk = 0; chunk < chunk_count(columns); ++chunk) {
    tma_load(destination + chunk * rows * kChunkRowBytes, map, barrier, chunk * chunk_step, row, head, batch);
  }
}

}  // namespace foveal::device
