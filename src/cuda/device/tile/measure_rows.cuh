#pragma once
// Largest score and sum of exponentials of single rows, recomputed from memory for far rows (score/far_row.cuh), which are rare; 16-bit
// types. Products are summed 16 at a time like wgmma's, and line values are rounded separately, as in the backward kernel: both must get
// the same scores.
#include "ptx/mma.cuh"
#include "ptx/warp.cuh"
#include "schedule/tasks.cuh"
#include "score/far_row.cuh"
#include "score/score.cuh"
#include "tile/kept_pair.cuh"
#include "tile/line_values.cuh"

namespace foveal::device {

/// Pairs of 16-bit elements (row, column) of one batch entry and head.
struct ElementPairs {
  const u16* data;
  i64 row_stride;
  FOVEAL_DEVICE ElementPairs(const Tensor& tensor, int batch, i64 first_row, int head)
      : data(static_cast<const u16*>(tensor.data) + batch * tensor.batch + head * tensor.head + first_row * tensor.seq),
        row_stride(tensor.seq) {}
  FOVEAL_DEVICE u32 at(int row, int column) const {
    return column < kProblem.head_dim ? *reinterpret_cast<const u32*>(data + row * row_stride + column) : 0;
  }
};

/// Keeps line values rounded separately from the pair's arithmetic.
FOVEAL_DEVICE real rounded(real value) {
  asm volatile("" : "+f"(value));
  return value;
}
template <int v = 0>
FOVEAL_DEVICE void fill_walk_values(Pair& at, const ScoreArgs& args) {
  if constexpr (v < kWalkValues) {
    at.walk[v] = rounded(walk_value<v>(at, args));
    fill_walk_values<v + 1>(at, args);
  }
}
template <int v = 0>
FOVEAL_DEVICE void fill_diagonal_values(Pair& at, const ScoreArgs& args) {
  if constexpr (v < kDiagonalValues) {
    at.diagonal[v] = rounded(diagonal_value<v>(at, args));
    fill_diagonal_values<v + 1>(at, args);
  }
}

/// 16 queries from first_q on, by all kWarps warps of a block; thread i < 16 returns the result of row i. exponent: score_unit * log2(e).
template <int kWarps>
FOVEAL_DEVICE RowMeasure<float> measure_rows(const Sm90Args& sm90, const Sequence& sequence, int head, int first_q, float exponent) {
  const AttentionArgs& args = sm90.attention;
  const ElementPairs queries(args.q, sequence.batch, sequence.first_q, head);
  const ElementPairs keys(args.k, sequence.batch, sequence.first_kv, head / args.group_size);
  const Position base{sequence.batch, head, 0, 0, sequence.len_q, sequence.len_kv};
  const int group = lane_id() / 4, column = 2 * (lane_id() % 4);
  const int row[2] = {min(first_q + group, sequence.len_q - 1), min(first_q + group + 8, sequence.len_q - 1)};
  RowMeasure<float> measure[2];
#pragma unroll 1
  for (int first_key = 8 * warp_id(); first_key < sequence.len_kv; first_key += 8 * kWarps) {
    const int key = min(first_key + group, sequence.len_kv - 1);
    float products[4] = {};
#pragma unroll 1
    for (int k = 0; k < kProblem.head_dim; k += 16) {
      const u32 a[4] = {queries.at(row[0], k + column), queries.at(row[1], k + column), queries.at(row[0], k + column + 8),
                        queries.at(row[1], k + column + 8)};
      mma(Element{}, products, a, keys.at(key, k + column), keys.at(key, k + column + 8));
    }
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      Pair at;
      const int kv = first_key + column + i % 2;
      static_cast<Position&>(at) = position_at(args, base, row[i / 2], kv);
      if (kv >= sequence.len_kv) continue;
      if constexpr (kHasMask) {
        if (!keeps_pair(sm90, at, row[i / 2], kv)) continue;
      }
      fill_walk_values(at, args.score);
      fill_diagonal_values(at, args.score);
      const float product = i / 2 == 0 ? (i == 0 ? products[0] : products[1]) : (i == 2 ? products[2] : products[3]);
      const float score = score_in_units(Score{product, sm90.scale}, at, args.score);
      if (i / 2 == 0) {
        measure[0].add(score, exponent);
      } else {
        measure[1].add(score, exponent);
      }
    }
  }
  __shared__ RowMeasure<float> of_warp[kWarps][16];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    measure[r].join_lanes(1, exponent);
    measure[r].join_lanes(2, exponent);
    if (lane_id() % 4 == 0) of_warp[warp_id()][group + 8 * r] = measure[r];
  }
  __syncthreads();
  RowMeasure<float> result;
  if (threadIdx.x < 16) {
    for (int warp = 0; warp < kWarps; ++warp) result.join(of_warp[warp][threadIdx.x], exponent);
  }
  __syncthreads();
  return result;
}

}  // namespace foveal::device
