#pragma once
// Line values: parts of the score that are constant along a column or a diagonal of a tile. A helper warp evaluates them once into shared
// memory. A thread needs few of them: all 8 x 8 blocks of a fragment on one block diagonal use the same two values.
//
// A tile has kRows rows, fixed during a task, by kWalked columns along the walk.
#include "layout/agreed.cuh"
#include "layout/sm90.cuh"
#include "score/score.cuh"
#include "tile/fragment.cuh"

namespace foveal::device {

constexpr bool kHasLines = kWalkValues + kDiagonalValues > 0;

FOVEAL_DEVICE bool is_tame(float value) { return fabsf(value) <= kTame; }

/// The pair at local positions q and key, clamped to the sequence; base: its other fields.
FOVEAL_DEVICE Position position_at(const AttentionArgs& args, const Position& base, int q, int key) {
  Position position = base;
  position.q = static_cast<int>(args.q_offset) + min(q, base.seqlen_q - 1);
  position.kv = static_cast<int>(args.kv_offset) + min(key, base.seqlen_kv - 1);
  return position;
}

/// A pair with query - key = `difference` (local positions), or the nearest that exists.
FOVEAL_DEVICE Position position_on_diagonal(const AttentionArgs& args, const Position& base, int difference) {
  const int existing = min(max(difference, 1 - base.seqlen_kv), base.seqlen_q - 1);
  return position_at(args, base, max(existing, 0), max(-existing, 0));
}

/// The values of a tile in shared memory. Diagonals are numbered column - row + kRows - 1; one unused number makes their count even.
template <int kRows, int kWalked>
struct LineTile {
  static constexpr int kDiagonals = kRows + kWalked;
  static constexpr int kValues = kWalkValues * kWalked + kDiagonalValues * kDiagonals;
  static constexpr int kFloats = line_floats({kWalkValues, kDiagonalValues, kChecksLines}, kRows, kWalked);
  float* data;  // null: no tile

  FOVEAL_DEVICE float* walk(int v) const { return data + v * kWalked; }
  FOVEAL_DEVICE float* diagonal(int v) const { return data + kWalkValues * kWalked + v * kDiagonals; }

  /// kChecksLines: are all column values tame? Warp-collective.
  FOVEAL_DEVICE bool tame() const { return __all_sync(~0u, data[kValues] != 0.0f); }

  /// By one warp. column_at(column): a pair in a column; diagonal_at(d): a pair on the diagonal column - row = d. `before`: the previous
  /// tile, if this one continues its walk (which goes down): its first diagonals are this tile's last ones.
  template <class ColumnAt, class DiagonalAt>
  FOVEAL_DEVICE void fill(const ScoreArgs& args, LineTile before, ColumnAt&& column_at, DiagonalAt&& diagonal_at) const {
    bool tame = true;
#pragma unroll 3
    for (int first = 0; first < kWalked; first += kWarp) {
      const int column = first + lane_id();
      if (kWalkValues > 0 && (kWalked % kWarp == 0 || column < kWalked)) tame = fill_walk<0>(column, column_at(column), args) & tame;
    }
    if constexpr (kChecksLines) {
      tame = __all_sync(~0u, tame);
      if (lane_id() == 0) data[kValues] = tame ? 1.0f : 0.0f;
    }
    const int known = before.data == nullptr ? kDiagonals : kWalked;
    for (int d = known + lane_id(); d < kDiagonals; d += kWarp) {
#pragma unroll
      for (int v = 0; v < kDiagonalValues; ++v) diagonal(v)[d] = before.diagonal(v)[d - kWalked];
    }
#pragma unroll 2
    for (int d = lane_id(); kDiagonalValues > 0 && d < known; d += kWarp) fill_diagonal<0>(d, diagonal_at(d - (kRows - 1)), args);
  }

 private:
  template <int v>
  FOVEAL_DEVICE bool fill_walk(int column, const Position& at, const ScoreArgs& args) const {
    const float value = walk_value<v>(at, args);
    walk(v)[column] = value;
    bool tame = !kWalkIsChecked[v] || is_tame(value);
    if constexpr (v + 1 < kWalkValues) tame = fill_walk<v + 1>(column, at, args) & tame;
    return tame;
  }
  template <int v>
  FOVEAL_DEVICE void fill_diagonal(int d, const Position& at, const ScoreArgs& args) const {
    diagonal(v)[d] = diagonal_value<v>(at, args);
    if constexpr (v + 1 < kDiagonalValues) fill_diagonal<v + 1>(d, at, args);
  }
};

/// A thread's line values, loaded on demand; the compiler reuses repeated loads.
template <int kWalked>
struct LineView {
  const float* walk[kWalkSlots];          // at the thread's first column
  const float* diagonal[kDiagonalSlots];  // at the diagonal of the thread's second row and first column

  /// row, column: the thread's first in the tile.
  template <int kRows>
  FOVEAL_DEVICE LineView(LineTile<kRows, kWalked> tile, int row, int column) {
#pragma unroll
    for (int v = 0; v < kWalkValues; ++v) walk[v] = tile.walk(v) + column;
#pragma unroll
    for (int v = 0; v < kDiagonalValues; ++v) diagonal[v] = tile.diagonal(v) + column - (row + 8) + kRows - 1;
  }

  /// From this many columns further on.
  FOVEAL_DEVICE LineView from(int columns) const {
    LineView view = *this;
#pragma unroll
    for (int v = 0; v < kWalkValues; ++v) view.walk[v] += columns;
#pragma unroll
    for (int v = 0; v < kDiagonalValues; ++v) view.diagonal[v] += columns;
    return view;
  }

  /// The pair of register i at `position`.
  FOVEAL_DEVICE Pair pair(int i, const Position& position) const {
    Pair pair;
    static_cast<Position&>(pair) = position;
#pragma unroll
    for (int v = 0; v < kWalkValues; ++v) pair.walk[v] = walk[v][fragment_column(i)];
#pragma unroll
    for (int v = 0; v < kDiagonalValues; ++v) pair.diagonal[v] = diagonal[v][fragment_column(i) + 8 * (1 - fragment_row(i))];
    return pair;
  }
};

}  // namespace foveal::device
