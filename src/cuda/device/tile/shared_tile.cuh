#pragma once
// Tiles in shared memory for ldmatrix: padded rows of kCols elements.
#include "args.cuh"
#include "layout/sm80.cuh"
#include "ptx/mma.cuh"

namespace foveal::device {

template <class T, int kRows, int kCols>
struct SharedTile {
  static_assert(kCols % 16 == 0, "columns come in steps of the tensor cores");
  static constexpr int kPitch = padded_row_bytes(kCols, sizeof(T)) / int(sizeof(T));
  static constexpr int kPieces = kCols * int(sizeof(T)) / 16;  ///< of 16 bytes, in a row
  T* data;

  FOVEAL_DEVICE T* row(int r) const { return data + r * kPitch; }
};

/// Fills the tile with rows [0, valid_rows) and columns [0, valid_cols) of a matrix in global memory, zeros elsewhere. By all threads; the
/// caller commits and waits.
template <int kThreads, class T, int kRows, int kCols>
FOVEAL_DEVICE void load_tile(SharedTile<T, kRows, kCols> tile, const T* source, i64 row_stride, i64 col_stride, int valid_rows,
                             int valid_cols, int copy_bytes) {
  using Tile = SharedTile<T, kRows, kCols>;
  constexpr int kPieceElements = 16 / int(sizeof(T));
  constexpr int kTotal = kRows * Tile::kPieces;
  if (copy_bytes == 16) {
#pragma unroll 4
    for (int i = threadIdx.x; i < round_up(kTotal, kThreads); i += kThreads) {
      if (kTotal % kThreads != 0 && i >= kTotal) break;
      const int r = i / Tile::kPieces, c = i % Tile::kPieces * kPieceElements;
      const bool valid = r < valid_rows && c < valid_cols;
      copy_async<16>(tile.row(r) + c, valid ? source + r * row_stride + c : source, valid);
    }
    return;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < kTotal; i += kThreads) {
    const int r = i / Tile::kPieces, c = i % Tile::kPieces * kPieceElements;
    const bool row_valid = r < valid_rows;
    const T* from = source + (row_valid ? r * row_stride : 0);
    T* to = tile.row(r) + c;
    if (sizeof(T) <= 4 && copy_bytes == 4) {
      constexpr int kStep = sizeof(T) >= 4 ? 1 : 4 / int(sizeof(T));
#pragma unroll 1
      for (int e = 0; e < kPieceElements; e += kStep) {
        const bool valid = row_valid && c + e < valid_cols;
        copy_async<4>(to + e, from + (valid ? c + e : 0), valid);
      }
    } else {
#pragma unroll 1
      for (int e = 0; e < kPieceElements; ++e) {
        const bool valid = row_valid && c + e < valid_cols;
        to[e] = valid ? from[(c + e) * col_stride] : T{};
      }
    }
  }
}

/// Writes rows [0, valid_rows) and columns [0, valid_cols) of the tile to global memory. The caller synchronises first.
template <int kThreads, class T, int kRows, int kCols>
FOVEAL_DEVICE void store_tile(T* target, i64 row_stride, i64 col_stride, SharedTile<T, kRows, kCols> tile, int valid_rows, int valid_cols,
                              int copy_bytes) {
  using Tile = SharedTile<T, kRows, kCols>;
  constexpr int kPieceElements = 16 / int(sizeof(T));
  for (int i = threadIdx.x; i < kRows * Tile::kPieces; i += kThreads) {
    const int r = i / Tile::kPieces;
    const int c = i % Tile::kPieces * kPieceElements;
    if (r >= valid_rows || c >= valid_cols) continue;
    const T* from = tile.row(r) + c;
    T* to = target + r * row_stride;
    if (copy_bytes == 16) {
      *reinterpret_cast<uint4*>(to + c) = *reinterpret_cast<const uint4*>(from);
    } else {
#pragma unroll 1
      for (int e = 0; e < kPieceElements; ++e)
        if (c + e < valid_cols) to[(c + e) * col_stride] = from[e];
    }
  }
}

}  // namespace foveal::device
