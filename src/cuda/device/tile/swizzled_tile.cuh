#pragma once
// Products of whole tiles by wgmma. Tiles in shared memory are [chunk of columns][row][64], 128-byte swizzle, as TMA writes them. Chunks
// begin every 64 columns, or closer and overlapping, so that a product can start at more columns.
#include "layout/sm90.cuh"
#include "ptx/warp.cuh"
#include "ptx/wgmma.cuh"

namespace foveal::device {

/// A tile of `rows` rows in shared memory; the same bytes serve as K-major operand (contraction over columns) and MN-major operand
/// (contraction over rows).
template <int rows, int chunk_step = kChunkColumns>
struct SwizzledTile {
  u32 address;
  static constexpr int kChunkBytes = rows * kChunkRowBytes;

  /// K-major: rows from `row` on, columns from 16 * step on.
  FOVEAL_DEVICE MatrixDescriptor columns(int row, int step) const {
    constexpr int kSteps = chunk_step / 16;  // of a chunk
    return MatrixDescriptor::at(address + row * kChunkRowBytes).offset(step / kSteps * kChunkBytes + step % kSteps * 32);
  }
  /// Address of eight elements of a row, from `column` on, a multiple of eight.
  FOVEAL_DEVICE u32 block_of_row(int row, int column) const {
    return address + column / chunk_step * kChunkBytes + row * kChunkRowBytes + ((column % chunk_step / 8 ^ (row & 7)) << 4);
  }
  /// MN-major: rows from 16 * step on, columns from `column` on: the start of a chunk, or a multiple of 16 if the operand stays inside a
  /// chunk.
  FOVEAL_DEVICE MatrixDescriptor rows_at(int step, int column = 0) const {
    return MatrixDescriptor::at(address, kChunkBytes)
        .offset(column / chunk_step * kChunkBytes + column % chunk_step * 2 + step * 16 * kChunkRowBytes);
  }
};

/// Operand addresses in uniform registers: wgmmas then issue back to back.
template <int rows, int chunk_step>
FOVEAL_DEVICE SwizzledTile<rows, chunk_step> uniform(SwizzledTile<rows, chunk_step> tile) {
  return {uniform(tile.address)};
}

/// acc[64 x n] = a[row .. row + 64, :] b[row_b .. row_b + n, :]^T over `depth` columns of both tiles.
template <class Element, int n, int depth, int rows_a, int rows_b, int step_a>
FOVEAL_DEVICE void multiply_rows(float (&acc)[n / 2], SwizzledTile<rows_a, step_a> a, int row, SwizzledTile<rows_b> b, int row_b = 0,
                                 bool accumulate = false) {
#pragma unroll
  for (int step = 0; step < depth / 16; ++step) {
    Wgmma<n, kSame<Element, bf16>>::template run<Major::k, Major::k>(acc, a.columns(row, step), b.columns(row_b, step),
                                                                     accumulate || step > 0);
  }
}

/// acc[64 x n] (+)= p b: p [64 x depth] in registers; contraction over the rows of b.
template <class Element, int n, int depth, int rows_b>
FOVEAL_DEVICE void multiply_registers(float (&acc)[n / 2], const u32 (&p)[depth / 4], SwizzledTile<rows_b> b, bool accumulate) {
#pragma unroll
  for (int step = 0; step < depth / 16; ++step) {
    Wgmma<n, kSame<Element, bf16>>::template run<Major::mn>(acc, p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3],
                                                            b.rows_at(step), accumulate || step > 0);
  }
}

/// acc[64 x n] (+)= a[:, column_a .. + 64]^T b[:, column_b .. + n]: contraction over `depth` rows of both tiles.
template <class Element, int n, int depth, int rows_a, int rows_b, int step_b>
FOVEAL_DEVICE void multiply_columns(float (&acc)[n / 2], SwizzledTile<rows_a> a, int column_a, SwizzledTile<rows_b, step_b> b, int column_b,
                                    bool accumulate = false) {
#pragma unroll
  for (int step = 0; step < depth / 16; ++step) {
    Wgmma<n, kSame<Element, bf16>>::template run<Major::mn, Major::mn>(acc, a.rows_at(step, column_a), b.rows_at(step, column_b),
                                                                       accumulate || step > 0);
  }
}

}  // namespace foveal::device
