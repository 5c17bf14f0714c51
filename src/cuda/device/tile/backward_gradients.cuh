#pragma once
// Backward: dS from P and dP, the terms of parameter gradients, and the additions to dQ.
#include "tile/backward_softmax.cuh"

namespace foveal::device {

struct BackwardGradients : BackwardSoftmax {
  using BackwardSoftmax::BackwardSoftmax;

  /// dS^T = P (dP^T - delta), packed. With parameter gradients, dp becomes the gradient of the modified score (or, with early terms, dP -
  /// delta), and register sums are accumulated.
  template <bool partial>
  FOVEAL_DEVICE void compute_ds(float (&p)[kBlockQ / 2], float (&dp)[kBlockQ / 2], const u32 (&dropped)[kBlockQ / 64],
                                const EarlyTerms& early, ReadSums& sums, const PairPrefetch& prefetched, u32 (&packed)[kBlockQ / 4],
                                const BackwardTask& work, u32 use) const {
    const WarpPairs pairs = warp_pairs(work, use, prefetched);
    const u32 delta = pipelines.delta(use) + 4 * fragment_first_column(thread);
    TileSums tile_sums;
    if constexpr (kFoldsRows) pipelines.staged.producer_acquire(use);
#pragma unroll
    for (int i = 0; i < kBlockQ / 2; i += 4) {
      float d[2];
      load_pair(delta + 4 * fragment_column(i), d);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float grad = dp[i + j];
        if constexpr (kProblem.dropout) grad = dropped[(i + j) / 32] >> (i + j) % 32 & 1 ? 0.0f : grad * args.attention.dropout.keep_scale;
        const float difference = grad - d[j & 1];
        bool kept = !partial || p[i + j] != 0.0f;  // dropped pairs may hold NaN
        p[i + j] = kept ? p[i + j] * difference : 0.0f;
        if constexpr (kSumsTerms && kSlopeEarly) {
#pragma unroll
          for (int read = 0; read < kEarlyReads; ++read) kept = kept || early[read][i + j] != 0.0f;
          dp[i + j] = kept ? difference : 0.0f;
        }
        if constexpr (kSumsTerms && !kSlopeEarly) {
          dp[i + j] = p[i + j];
          const float sloped = p[i + j] * slope_in_units(0.0f, pairs.template pair<partial>(i + j), args.attention.score);
          p[i + j] = partial && p[i + j] == 0.0f ? 0.0f : sloped;
        }
        if constexpr (kSumsTerms) pairs.template sum_up<partial>(dp[i + j], early, i + j, tile_sums, sums);
      }
      if constexpr (kFoldsRows) pairs.template fold_rows<partial>(dp, early, i, pipelines.read_stage());
      packed[i / 2] = pack(Element{}, p[i], p[i + 1]);
      packed[i / 2 + 1] = pack(Element{}, p[i + 2], p[i + 3]);
    }
    if constexpr (kSumsTerms) tile_sums.add_to(sums);
    if constexpr (kFoldsRows) producer_commit(pipelines.staged, use);
  }

  /// Hands a tile's parameter-gradient terms to those who sum them.
  FOVEAL_DEVICE void collect_terms(const WarpPairs& pairs, const float (&terms)[kBlockQ / 2], const EarlyTerms& early, ReadSums& sums,
                                   u32 tile) const {
    pairs.add_to_bins(terms, early, sums, pipelines.read_bins(), tile);
    if constexpr (kStagedReads > 0 && !kFoldsRows) pipelines.staged.producer_acquire(tile);
    pairs.collect<0>(terms, early, pipelines.read_stage());
    if constexpr (kStagedReads > 0 && !kFoldsRows) producer_commit(pipelines.staged, tile);
  }

  /// Adds a part of dQ to a query tile's fp32 accumulator, from element `first` on, in accumulator order: coalesced, without conversion of
  /// layouts.
  template <int count>
  FOVEAL_DEVICE void add_dq(float* sum, int first, const float (&dq)[count]) const {
    float* to = sum + first + 4 * thread;
#pragma unroll
    for (int i = 0; i < count; i += 4) {
      add_four(to + i * 128, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    }
  }

  /// The accumulator of the current query tile.
  FOVEAL_DEVICE float* dq_sum(const BackwardTask& work) const {
    return args.dq_sum + (stat_row<kProblem.varlen>(args, work.sequence, work.head_q(args.attention)) + work.first_q()) * kSumColumns;
  }
};

}  // namespace foveal::device
