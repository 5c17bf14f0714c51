#pragma once
// Numbers on which the host and the kernels must agree, and which are no sizes of shared memory. Plain C++, included by both.

namespace foveal::device {

/// Rows of a sequence in the workspace (statistics, sums of dq, dk, dv) are padded to a multiple of this, so no tile holds rows of two.
constexpr int kRowStep = 128;
/// Where the rows of sequence number `sequence` of a packed batch begin, whose first token is `first`.
constexpr auto padded_first_row(auto first, int sequence) { return (first + kRowStep * sequence) / kRowStep * kRowStep; }

constexpr int kPrepareThreads = 256;   ///< of a CTA of kernels/backward_prepare_sm90.cuh
constexpr int kConvertThreads = 128;   ///< a warpgroup, whose accumulator order sums of dq, dk and dv have
constexpr int kClassifyThreads = 256;  ///< of kernels/classify_sm80.cuh
constexpr int kListRunsWarps = 4;      ///< of kernels/list_runs_sm80.cuh, each with a row of tiles
/// Lanes of backward_prepare_sm90 that share a row: eight elements each.
constexpr int prepare_row_lanes(int head_dim_v) { return head_dim_v > 128 ? 32 : head_dim_v > 64 ? 16 : 8; }

/// A value no larger is far enough from overflow to be multiplied with two others and summed over many pairs.
constexpr float kTame = 0x1p40f;
/// Terms that a kernel sums before it adds to an exact sum: along a line of a tile with at least this many rows and columns of pairs.
constexpr int kExactSumTile = 16;
/// From this lse on, in natural units, a row is far (base/far_row.h).
constexpr float kFarLse = 4096;
/// From this magnitude on, in base 2, a reference is far: fma(score, scale, -reference) would expose its rounding error, and the base-2
/// value may overflow. The reference is then subtracted from the scores first.
constexpr float kFarReference = 4096;

}  // namespace foveal::device
