#pragma once
// Rows with infinity or NaN in the right operand of a product whose left operand is 0 for dropped pairs: padding may hold anything, and 0 *
// NaN would spread to rows that do not keep it.
#include "tile/problem.cuh"

namespace foveal::device {

FOVEAL_DEVICE bool has_nonfinite(const uint4& piece) {
  constexpr int kCount = 16 / int(sizeof(Element));
  const Element* elements = reinterpret_cast<const Element*>(&piece);
  bool nonfinite = false;
#pragma unroll
  for (int i = 0; i < kCount; ++i) nonfinite = nonfinite || !(fabs(to_real(elements[i])) < infinity());
  return nonfinite;
}

/// acc += left * tile over the non-finite rows of the tile, where left is not 0; then clears these rows for the ordinary product. By all
/// threads of the block, before they read the tile; `nonfinite`: a flag for each row. Columns [col, col + kN) of the tile.
template <int kM, int kN, int kRows, int kCols>
FOVEAL_DEVICE void accumulate_nonfinite_rows(R (&acc)[kM][kN / 8][4], const R (&left)[kM][kRows / 8][4],
                                             SharedTile<Element, kRows, kCols> tile, unsigned char* nonfinite, int col) {
  using Tile = SharedTile<Element, kRows, kCols>;
  const auto piece = [&](int i) -> uint4& { return reinterpret_cast<uint4*>(tile.row(i / Tile::kPieces))[i % Tile::kPieces]; };
  bool found = false;
  for (int i = threadIdx.x; i < kRows * Tile::kPieces; i += kThreads) found = found || has_nonfinite(piece(i));
  if (!__syncthreads_or(found)) return;
  for (int i = threadIdx.x; i < kRows; i += kThreads) nonfinite[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * Tile::kPieces; i += kThreads) {
    if (has_nonfinite(piece(i))) nonfinite[i / Tile::kPieces] = 1;
  }
  __syncthreads();
  const int t = lane_id() % 4;
#pragma unroll 1
  for (int row = 0; row < kRows; ++row) {
    if (!nonfinite[row]) continue;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        R weight = 0;
#pragma unroll
        for (int n = 0; n < kRows / 8; ++n)
#pragma unroll
          for (int j = 0; j < 2; ++j) weight = row / 8 == n && row % 2 == j ? left[m][n][2 * i + j] : weight;
        weight = __shfl_sync(~0u, weight, (lane_id() & ~3) + row % 8 / 2);
#pragma unroll
        for (int n = 0; n < kN / 8; ++n) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            R& sum = acc[m][n][2 * i + j];
            if (weight != 0) sum = fma_real(weight, to_real(tile.row(row)[col + 8 * n + 2 * t + j]), sum);
          }
        }
      }
    }
  }
  __syncthreads();
  clear_rows_unless(tile, nonfinite, 0);
  __syncthreads();
}

}  // namespace foveal::device
