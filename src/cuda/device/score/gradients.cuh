#pragma once
// Gradients of trainable parameters, for the kernel that owns tiles of queries. Each read is first summed, in a fixed order, along the
// lines on which its indices are constant; the rest goes to exact sums (score/exact_sum.cuh), so that the result does not depend on the
// order of blocks. Nothing of size S x S is stored, unless the parameter has that size.
#include "score/read_targets.cuh"
#include "tile/problem.cuh"

namespace foveal::device {

/// Is some read summed through shared memory?
constexpr bool staged_reads() {
  for (int r = 0; r < kReads; ++r)
    if (kRead[r].kind == kColumn || kRead[r].kind == kDiagonal) return true;
  return false;
}

struct alignas(2 * sizeof(R)) StagePair {
  R x, y;
};

/// Terms of a tile, for sums along its columns and diagonals.
template <int kRows, int kCols>
struct TermTile {
  static constexpr int kPitch = term_pitch(kCols);
  R* data;
};

/// Sums over a whole row of tiles.
template <int kM>
struct ReadSums {
  R uniform[kReadSlots];
  R row[kReadSlots][kM][2];

  FOVEAL_DEVICE void clear() {
#pragma unroll
    for (int r = 0; r < kReadSlots; ++r) {
      uniform[r] = 0;
#pragma unroll
      for (int m = 0; m < kM; ++m) row[r][m][0] = row[r][m][1] = 0;
    }
  }
};

/// Adds a tile: s holds scaled raw scores, ds the gradient of the modified scores, exactly 0 for dropped pairs. The thread's rows start at
/// row_in_tile + g, the tile at (q_begin, kv_begin), all local positions.
template <int r, int kThreads, int kRows, int kCols, int kM>
FOVEAL_DEVICE void collect_read(const AttentionArgs& args, Position at, int q_begin, int kv_begin, int row_in_tile,
                                const R (&s)[kM][kCols / 8][4], const R (&ds)[kM][kCols / 8][4], ReadSums<kM>& sums,
                                TermTile<kRows, kCols> stage) {
  constexpr bool kStaged = kRead[r].kind == kColumn || kRead[r].kind == kDiagonal;
  const int g = lane_id() / 4, t = lane_id() % 4;
  const auto position = [&](int row, int col) {
    Position here = at;
    here.q = int(args.q_offset) + min(q_begin + row, at.seqlen_q - 1);
    here.kv = int(args.kv_offset) + min(kv_begin + col, at.seqlen_kv - 1);
    return here;
  };
  if constexpr (kRead[r].kind != kElement || kRead[r].stores) {
    if constexpr (kStaged) __syncthreads();
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kCols / 8; ++n) {
        R pair[2];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = row_in_tile + 16 * m + g + e / 2 * 8;
          const int col = 8 * n + 2 * t + e % 2;
          const Position here = position(row, col);
          const R term = ds[m][n][e] == 0 ? R(0) : ds[m][n][e] * read_factor<r>(s[m][n][e], here, args.score);
          if constexpr (kRead[r].kind == kUniform) sums.uniform[r] += term;
          if constexpr (kRead[r].kind == kRow) sums.row[r][m][e / 2] += term;
          if constexpr (kStaged) pair[e % 2] = term;
          if constexpr (kStaged) {
            if (e % 2 == 1) *reinterpret_cast<StagePair*>(stage.data + row * stage.kPitch + col - 1) = {pair[0], pair[1]};
          }
          if constexpr (kRead[r].kind == kScatter) add_to_read<r>(args, s[m][n][e], here, term);
          if constexpr (kRead[r].kind == kElement) {
            if (q_begin + row < at.seqlen_q && kv_begin + col < at.seqlen_kv) store_to_read<r>(args, s[m][n][e], here, term);
          }
        }
      }
    }
  }
  if constexpr (kRead[r].kind == kColumn) {
    __syncthreads();
    for (int first = warp_id() * kWarp; first < kCols; first += kThreads) {
      const int col = first + lane_id();
      R sum = 0;
      if (col < kCols) {
#pragma unroll 8
        for (int row = 0; row < kRows; ++row) sum += stage.data[row * stage.kPitch + col];
      }
      add_warp_to_read<r>(args, read_element<r>(args, real(0), position(0, col)), sum);
    }
  }
  if constexpr (kRead[r].kind == kDiagonal) {
    __syncthreads();
    for (int warp_diagonal = warp_id() * kWarp - (kRows - 1); warp_diagonal < kCols; warp_diagonal += kThreads) {
      const int diagonal = warp_diagonal + lane_id();
      // Rows that the diagonals of this warp cross.
      const int row_begin = max(0, -(warp_diagonal + kWarp - 1)), row_end = min(kRows, kCols - warp_diagonal);
      R sum = 0;
#pragma unroll 8
      for (int row = row_begin; row < row_end; ++row) {
        const int col = row + diagonal;
        if (col >= 0 && col < kCols) sum += stage.data[row * stage.kPitch + col];
      }
      const int first = max(0, -diagonal);
      add_warp_to_read<r>(args, read_element<r>(args, real(0), position(first, first + diagonal)), sum);
    }
  }
  if constexpr (r + 1 < kReads) {
    collect_read<r + 1, kThreads, kRows, kCols, kM>(args, at, q_begin, kv_begin, row_in_tile, s, ds, sums, stage);
  }
}

/// Adds what was summed over the row of tiles. `scratch`: one R for each warp, in shared memory.
template <int r, int kWarps, int kM>
FOVEAL_DEVICE void finish_reads(const AttentionArgs& args, Position at, int q_local, const ReadSums<kM>& sums, R* scratch) {
  at.kv = int(args.kv_offset);
  at.q = int(args.q_offset) + min(q_local, at.seqlen_q - 1);
  if constexpr (kRead[r].kind == kRow) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const R sum = quad_sum(sums.row[r][m][i]);
        const int row = q_local + 16 * m + 8 * i;
        at.q = int(args.q_offset) + row;
        if (lane_id() % 4 == 0 && row < at.seqlen_q) add_to_read<r>(args, R(0), at, sum);
      }
    }
  }
  if constexpr (kRead[r].kind == kUniform) {
    R sum = warp_sum(sums.uniform[r]);
    __syncthreads();
    if (lane_id() == 0) scratch[warp_id()] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += scratch[w];
      add_to_read<r>(args, R(0), at, sum);
    }
  }
  if constexpr (r + 1 < kReads) finish_reads<r + 1, kWarps, kM>(args, at, q_local, sums, scratch);
}

}  // namespace foveal::device
