#pragma once
// Stores packed accumulators to shared memory (stmatrix) as an operand of a later product.
#include "base.cuh"
#include "tile/swizzled_tile.cuh"

namespace foveal::device {

/// Packed fragment of a warpgroup's 64 rows x `columns` to tile rows from first_row on.
template <int columns, int rows>
FOVEAL_DEVICE void store_fragment(SwizzledTile<rows> tile, int first_row, const u32 (&packed)[columns / 4], int thread) {
  const int lane = thread % 32;
  const int row = first_row + 16 * (thread / 32) + lane % 16;  // matrices 0, 2: rows 0-7; 1, 3: rows 8-15
  const u32 base = tile.address + row * kChunkRowBytes;
#pragma unroll
  for (int step = 0; step < columns / 16; ++step) {
    const int piece = 2 * step % 8 + lane / 16;  // of 16 bytes in the row of 128
    const u32 address = base + 2 * step / 8 * SwizzledTile<rows>::kChunkBytes + ((piece ^ (row & 7)) << 4);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(packed[4 * step]),
                 "r"(packed[4 * step + 1]), "r"(packed[4 * step + 2]), "r"(packed[4 * step + 3])
                 : "memory");
  }
}

}  // namespace foveal::device
