#pragma once
// What is the same along a line of a tile is evaluated once: warps that would idle beside the one that loads evaluate the score's functions of a position
// along the walk and of a diagonal, and leave the values in shared memory for those that compute. In registers a thread needs few of them: all 8 x 8
// blocks of a fragment on one diagonal of blocks see the same two values.
//
// A tile has kRows rows, which stay, by kWalked columns, along which the walk of a task goes.
#include "score/score.cuh"
#include "tile/fragment.cuh"

namespace foveal::device {

constexpr bool kHasLines = kWalkValues + kDiagonalValues > 0;
constexpr int kWalkSlots = kWalkValues > 0 ? kWalkValues : 1, kDiagonalSlots = kDiagonalValues > 0 ? kDiagonalValues : 1;

/// A pair with the values of its lines.
struct Pair : Position {
  float walk[kWalkSlots], diagonal[kDiagonalSlots];
};

/// The values of a tile in shared memory. Diagonals are numbered by column - row + kRows - 1; a number that does not exist makes their count even.
template <int kRows, int kWalked>
struct LineTile {
  static constexpr int kDiagonals = kRows + kWalked;
  static constexpr int kFloats = kWalkValues * kWalked + kDiagonalValues * kDiagonals;
  float* data;

  FOVEAL_DEVICE float* walk(int v) const { return data + v * kWalked; }
  FOVEAL_DEVICE float* diagonal(int v) const { return data + kWalkValues * kWalked + v * kDiagonals; }

  /// By thread number `thread` of `threads`. at(row, column): where a pair is.
  template <class At>
  FOVEAL_DEVICE void fill(int thread, int threads, const ScoreArgs& args, At&& at) const {
    for (int column = thread; kWalkValues > 0 && column < kWalked; column += threads) fill_walk<0>(column, at(0, column), args);
    for (int d = thread; kDiagonalValues > 0 && d < kDiagonals; d += threads) {
      const int ahead = d - (kRows - 1);
      fill_diagonal<0>(d, at(max(0, -ahead), max(0, ahead)), args);
    }
  }

 private:
  template <int v>
  FOVEAL_DEVICE void fill_walk(int column, const Position& at, const ScoreArgs& args) const {
    walk(v)[column] = walk_value<v>(at, args);
    if constexpr (v + 1 < kWalkValues) fill_walk<v + 1>(column, at, args);
  }
  template <int v>
  FOVEAL_DEVICE void fill_diagonal(int d, const Position& at, const ScoreArgs& args) const {
    diagonal(v)[d] = diagonal_value<v>(at, args);
    if constexpr (v + 1 < kDiagonalValues) fill_diagonal<v + 1>(d, at, args);
  }
};

/// The values that a thread's pairs need.
template <int kWalked>
struct LineRegisters {
  float walk[kWalkSlots][kWalked / 8][2], diagonal[kDiagonalSlots][kWalked / 8 + 1][2];

  /// row, column: the thread's first in the tile.
  template <int kRows>
  FOVEAL_DEVICE LineRegisters(LineTile<kRows, kWalked> tile, int row, int column) {
#pragma unroll
    for (int v = 0; v < kWalkValues; ++v) {
#pragma unroll
      for (int block = 0; block < kWalked / 8; ++block) {
        const float2 pair = *reinterpret_cast<const float2*>(tile.walk(v) + column + 8 * block);
        walk[v][block][0] = pair.x;
        walk[v][block][1] = pair.y;
      }
    }
#pragma unroll
    for (int v = 0; v < kDiagonalValues; ++v) {
      const float* first = tile.diagonal(v) + column - (row + 8) + kRows - 1;
#pragma unroll
      for (int i = 0; i < 2 * (kWalked / 8 + 1); ++i) diagonal[v][i / 2][i % 2] = first[i / 2 * 8 + i % 2];
    }
  }

  /// The pair of register i, which is at `position`.
  FOVEAL_DEVICE Pair pair(int i, const Position& position) const {
    Pair pair;
    static_cast<Position&>(pair) = position;
#pragma unroll
    for (int v = 0; v < kWalkValues; ++v) pair.walk[v] = walk[v][i / 4][i % 2];
#pragma unroll
    for (int v = 0; v < kDiagonalValues; ++v) pair.diagonal[v] = diagonal[v][i / 4 + 1 - fragment_row(i)][i % 2];
    return pair;
  }
};

}  // namespace foveal::device
