#pragma once
// Tiles from global to shared memory by TMA.
#include "ptx/tma.cuh"
#include "tile/swizzled_tile.cuh"

namespace foveal::device {

/// A tile of `rows` x `columns` at (row, head, batch), from `column` on; completes on `barrier` with the bytes of its chunks.
template <int rows, int columns, int chunk_step = kChunkColumns>
FOVEAL_DEVICE void load_tile(u32 destination, const TensorMap& map, u32 barrier, int row, int head, int batch, int column = 0) {
#pragma unroll
  for (int chunk = 0; chunk < chunk_count(columns, chunk_step); ++chunk) {
    tma_load(destination + chunk * rows * kChunkRowBytes, map, barrier, column + chunk * chunk_step, row, head, batch);
  }
}

}  // namespace foveal::device
