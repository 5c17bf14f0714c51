#pragma once
// Gradients of trainable parameters from transposed tiles of dS: a warp has 16 keys by kBlockQ queries. The terms of each read are first
// summed, in a fixed order, along the lines on which its indices are constant; the rest goes to exact sums, so that the result does not
// depend on the order of CTAs.
//
// Uniform reads and columns of the scores are summed in registers over the whole walk. Rows and diagonals change from tile to tile: each
// thread adds the terms of its two keys and stages them in shared memory (ReadStage), where collector warps sum them
// (tile/read_collector.cuh) during the next tile.
#include "layout/sm90.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/warp.cuh"
#include "tile/bin_terms.cuh"

namespace foveal::device {

/// Does some read need terms of pairs?
constexpr bool has_terms(int r) { return r < kReads && (kRead[r].has_terms || has_terms(r + 1)); }
constexpr bool kSumsTerms = kConfig.collects_terms() && has_terms(0);

constexpr int staged_before(int end) {
  int count = 0;
  for (int r = 0; r < end; ++r) count += kRead[r].is_staged;
  return count;
}
constexpr int kStagedReads = kConfig.collects_terms() ? staged_before(kReads) : 0;

/// Is there a read, or a staged read, whose factor is finite if line values are tame?
constexpr bool any_tame(int r, bool staged) {
  if (r >= kReads) return false;
  const bool guards = kRead[r].has_terms && kRead[r].factor_is_tame && !kRead[r].factor_is_finite && !kRead[r].is_early;
  return (guards && (!staged || kRead[r].is_staged)) || any_tame(r + 1, staged);
}
constexpr bool kTameReads = kConfig.collects_terms() && any_tame(0, false);
constexpr bool any_diagonal(int r) { return r < kReads && (kRead[r].kind == kDiagonal || any_diagonal(r + 1)); }
/// Whether row terms are folded where register sums are accumulated, which needs the same factors; otherwise overlapped with the products
/// that follow.
constexpr bool kFoldsRows = kStagedReads > 0 && any_tame(0, true) && !any_diagonal(0);

constexpr int staged_floats_before(int end) {
  int count = 0;
  for (int r = 0; r < end; ++r)
    if (kRead[r].is_staged) count += ReadStageShape::floats(kBlockQ, kBlockKv, kRead[r].kind == kDiagonal);
  return count;
}

/// Staged terms of a tile: 8 rows for each warp, row g with the sums of keys g and g + 8. Columns of a row read are queries. In a diagonal
/// read, keys 8 apart share diagonals shifted by 8 queries: column c of row g has queries c - 8 of key g and c of key g + 8. Diagonals a
/// multiple of four apart are so in address as well, and the zeros between rows let a warp sum 32 diagonals without bounds checks.
struct ReadStage {
  static constexpr int kRows = ReadStageShape::rows(kBlockKv), kZeros = ReadStageShape::kZeros;
  static constexpr int kBytes = kStagedReads > 0 ? 4 * staged_floats_before(kReads) : 0;
  float* data;

  template <int r>
  static constexpr int kPitch = ReadStageShape::pitch(kBlockQ, kRead[r].kind == kDiagonal);
  template <int r>
  FOVEAL_DEVICE float* row(int row) const {
    return data + staged_floats_before(r) + kZeros + row * kPitch<r>;
  }

  /// By all threads of the CTA.
  FOVEAL_DEVICE void clear() const {
    for (int i = threadIdx.x; i < kBytes / 4; i += blockDim.x) data[i] = 0;
  }
};

/// Sums of one tile, with several accumulators for each read to hide the latency of additions.
struct TileSums {
  float uniform[kReadSlots][4] = {};

  FOVEAL_DEVICE void add_to(ReadSums& sums) const {
#pragma unroll
    for (int r = 0; r < kReads; ++r) sums.uniform[r] += (uniform[r][0] + uniform[r][1]) + (uniform[r][2] + uniform[r][3]);
  }
};

/// Adds a uniform read's sum over the warp.
template <int r>
FOVEAL_DEVICE void add_warp_sum(const AttentionArgs& args, const Position& base, float sum) {
  sum = warp_sum(sum);
  if (lane_id() == 0) add_to_read<r>(args, 0.0f, position_at(args, base, 0, 0), sum_of_read<r>(args, base, sum));
}

/// Reads that follow from dK; `sum`: this lane's part of k . dk.
template <int r = 0>
FOVEAL_DEVICE void add_reads_of_dk(const AttentionArgs& args, const Position& base, float sum) {
  if constexpr (r < kReads) {
    if constexpr (kRead[r].follows_from_dk) add_warp_sum<r>(args, base, sum);
    add_reads_of_dk<r + 1>(args, base, sum);
  }
}
constexpr bool any_follows_from_dk(int r) { return r < kReads && (kRead[r].follows_from_dk || any_follows_from_dk(r + 1)); }

/// A warp's tile, and what becomes of its terms.
struct WarpPairs : BinnedPairs {
  /// Adds a pair to the sums in registers. partial: the tile is partial, or its line values are not tame.
  template <bool partial, int r = 0>
  FOVEAL_DEVICE void sum_up(float gradient, const EarlyTerms& early, int i, TileSums& tile, ReadSums& sums) const {
    if constexpr (r < kReads) {
      if constexpr (kRead[r].kind == kUniform && kRead[r].has_terms)
        tile.uniform[r][i % 4] += term<r, partial, partial>(gradient, early, i);
      if constexpr (kRead[r].kind == kColumn) sums.column[r][fragment_row(i)] += term<r, partial, partial>(gradient, early, i);
      if constexpr (is_binned(r)) {
        constexpr int b = binned_before(r);
        sums.largest[b] = larger_size(sums.largest[b], term<r, partial, partial>(gradient, early, i));
        if constexpr (kRead[r].bin_is_window) {
          const int bin = read_bin<r>(0.0f, pair<partial>(i), args.score);
          sums.low[b] = min(sums.low[b], bin);
          sums.high[b] = max(sums.high[b], bin);
        }
      }
      sum_up<partial, r + 1>(gradient, early, i, tile, sums);
    }
  }

  /// Where the terms of the thread's first query are staged.
  template <int r>
  FOVEAL_DEVICE static float* staged_row(ReadStage stage) {
    return stage.row<r>(8 * (warp_id() - 4) + lane_id() / 4) + fragment_first_column(lane_id());
  }

  /// kFoldsRows: stages the terms of registers i .. i + 3, two queries by two keys.
  template <bool partial, int r = 0>
  FOVEAL_DEVICE void fold_rows(const float (&gradients)[kBlockQ / 2], const EarlyTerms& early, int i, ReadStage stage) const {
    if constexpr (r < kReads) {
      if constexpr (kRead[r].kind == kRow) {
        const auto term = [&](int j) { return this->term<r, partial, partial>(gradients[i + j], early, i + j); };
        *reinterpret_cast<float2*>(staged_row<r>(stage) + fragment_column(i)) = make_float2(term(0) + term(2), term(1) + term(3));
      }
      fold_rows<partial, r + 1>(gradients, early, i, stage);
    }
  }

  /// Stages a tile's terms for the collectors, or writes them.
  template <int r>
  FOVEAL_DEVICE void collect(const float (&gradients)[kBlockQ / 2], const EarlyTerms& early, ReadStage stage) const {
    const auto term = [&](int i) { return this->term<r, true>(gradients[i], early, i); };
    if constexpr ((kRead[r].kind == kScatter && !is_binned(r)) || (kRead[r].kind == kElement && kRead[r].stores)) {
#pragma unroll
      for (int i = 0; i < kBlockQ / 2; ++i) {
        if constexpr (kRead[r].kind == kScatter) add_to_read<r>(args, 0.0f, pair(i), sum_of_read<r>(args, base, term(i)));
        if constexpr (kRead[r].kind == kElement) {
          const bool exists = first_q + fragment_column(i) < base.seqlen_q && first_key + 8 * fragment_row(i) < base.seqlen_kv;
          if (exists) store_to_read<r>(args, 0.0f, pair(i), sum_of_read<r>(args, base, term(i)));
        }
      }
    }
    if constexpr (kRead[r].is_staged && !kFoldsRows) {
      constexpr int shift = kRead[r].kind == kDiagonal;  // in blocks of 8 queries, between keys g and g + 8
      float* row = staged_row<r>(stage);
#pragma unroll
      for (int block = 0; block < kBlockQ / 8 + shift; ++block) {
        float2 folded = make_float2(0, 0);
        if (block >= shift) folded = make_float2(term(4 * (block - shift)), term(4 * (block - shift) + 1));
        if (block < kBlockQ / 8) folded = make_float2(folded.x + term(4 * block + 2), folded.y + term(4 * block + 3));
        if constexpr (kRead[r].kind == kRow) {
          *reinterpret_cast<float2*>(row + 8 * block) = folded;
        } else {
          row[8 * block] = folded.x;
          row[8 * block + 1] = folded.y;
        }
      }
    }
    if constexpr (r + 1 < kReads) collect<r + 1>(gradients, early, stage);
  }

  /// Adds what was summed over all tiles.
  template <int r>
  FOVEAL_DEVICE void finish(const ReadSums& sums, ReadBins bins) const {
    if constexpr (r == 0 && kBinnedReads > 0) {
      named_barrier_sync(kBinsBarrier, kBinThreads);
      flush_all_bins(sums, bins);
    }
    if constexpr (kRead[r].kind == kUniform && kRead[r].has_terms) add_warp_sum<r>(args, base, sums.uniform[r]);
    if constexpr (kRead[r].kind == kColumn) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float sum = quad_sum(sums.column[r][i]);
        const int key = first_key + 8 * i;
        if (lane_id() % 4 == 0 && key < base.seqlen_kv)
          add_to_read<r>(args, 0.0f, position_at(args, base, 0, key), sum_of_read<r>(args, base, sum));
      }
    }
    if constexpr (r + 1 < kReads) finish<r + 1>(sums, bins);
  }
};

}  // namespace foveal::device
