#pragma once
// Shared by the portable kernels: types and sizes of the problem and of its tiles, and views of its tensors.
//
// config.cuh: kProblem, kConfig (a PortableConfig).
#include "philox.cuh"
#include "schedule/tile_runs.cuh"
#include "score/far_row.cuh"
#include "score/score.cuh"
#include "sm80_config.cuh"
#include "tile/multiply.cuh"
#include "tile/part.cuh"

namespace foveal::device {

using R = Real<Element>;
constexpr int kHeadDimPadded = padded_dim(kProblem.head_dim, kConfig.column_split);
constexpr int kHeadDimVPadded = padded_dim(kProblem.head_dim_v, kConfig.column_split);
constexpr int kBlockQ = kConfig.block_q, kBlockKv = kConfig.block_kv, kRowTiles = kConfig.row_tiles, kThreads = kConfig.threads();
constexpr bool kScaleBefore = kHasScore || kProblem.scale_first;  ///< scale each score, instead of in the exponent
constexpr R kLog2eR = 1.4426950408889634;

/// View of the rows of one head of one sequence.
struct HeadView {
  Element* data;
  i64 row_stride, col_stride;
  int copy_bytes;

  FOVEAL_DEVICE HeadView(const Tensor& tensor, int batch, i64 first_row, int head)
      : data(static_cast<Element*>(tensor.data) + batch * tensor.batch + first_row * tensor.seq + head * tensor.head),
        row_stride(tensor.seq),
        col_stride(tensor.dim),
        copy_bytes(tensor.copy_bytes) {}

  template <int kRows, int kCols>
  FOVEAL_DEVICE void load(SharedTile<Element, kRows, kCols> tile, int row, int rows, int cols) const {
    load_tile<kThreads>(tile, data + row * row_stride, row_stride, col_stride, rows - row, cols, copy_bytes);
  }
  template <int kRows, int kCols>
  FOVEAL_DEVICE void store(SharedTile<Element, kRows, kCols> tile, int row, int rows, int cols) const {
    store_tile<kThreads>(data + row * row_stride, row_stride, col_stride, tile, rows - row, cols, copy_bytes);
  }
};

FOVEAL_DEVICE R* row_values(const Rows& rows, int batch, i64 first_row, int head) {
  return static_cast<R*>(rows.data) + batch * rows.batch + first_row * rows.seq + head * rows.head;
}

/// Adds fragments to a wide tensor of a part.
template <int kM, int kN8, class PreviousWeight>
FOVEAL_DEVICE void add_to_part(const Tensor& tensor, const Sequence& seq, int head, int row, int rows, int col, int cols,
                               const R (&acc)[kM][kN8][4], R factor, PreviousWeight&& previous_weight) {
  R* data = static_cast<R*>(tensor.data) + seq.batch * tensor.batch + head * tensor.head;
  add_rows(data, tensor.seq, tensor.dim, row, rows, col, cols, acc, factor, previous_weight);
}

/// Scale of kept pairs, 1 / (1 - p).
FOVEAL_DEVICE R keep_scale(const AttentionArgs& args) {
  return sizeof(R) == 8 ? R(args.dropout.keep_scale_f64) : R(args.dropout.keep_scale);
}

/// What is subtracted from a row's scores, and the log of the sum then (AttentionArgs::lse2).
struct RowStatistics {
  R largest, log_sum;
};

/// Are scores raw products, with the scale applied in the exponent?
constexpr bool kScaledInExponent = kTensorCores<Element> && !kScaleBefore;
FOVEAL_DEVICE R score_of(const AttentionArgs& args, R modified) {
  return kScaleBefore || kScaledInExponent ? modified : modified * R(args.scale);
}
FOVEAL_DEVICE R score_exponent(const AttentionArgs& args) { return kScaledInExponent ? R(args.scale) * kLog2eR : kLog2eR; }

FOVEAL_DEVICE R probability_of(const AttentionArgs& args, R modified, const RowStatistics& row) {
  const R score = unfused_difference(score_of(args, modified), row.largest);
  if constexpr (kTensorCores<Element>) return exp2_real(fma_real(score, score_exponent(args), -row.log_sum));
  return exp2_real((score - row.log_sum) * kLog2eR);
}

/// Clears the rows of a tile whose flag differs from `stays`: those that no pair of the tile keeps, as padding may hold NaN, and 0 * NaN =
/// NaN.
template <int kRows, int kCols>
FOVEAL_DEVICE void clear_rows_unless(SharedTile<Element, kRows, kCols> tile, const unsigned char* flags, int stays = 1) {
  using Tile = SharedTile<Element, kRows, kCols>;
  for (int i = threadIdx.x; i < kRows * Tile::kPieces; i += kThreads) {
    const int r = i / Tile::kPieces;
    if (flags[r] != stays) reinterpret_cast<uint4*>(tile.row(r))[i % Tile::kPieces] = uint4{0, 0, 0, 0};
  }
}

}  // namespace foveal::device
