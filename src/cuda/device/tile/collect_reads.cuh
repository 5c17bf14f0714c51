#pragma once
// Gradients of trainable parameters from transposed tiles of score gradients: a warp holds 16 keys by kBlockQ queries. The terms of each read are first
// summed along the lines on which its indices are constant, in a fixed order; what is left is added to exact sums, so that the result does not
// depend on the order in which CTAs run.
//
// A warp sums over its walk what is the same for all tiles (uniform reads, columns of the scores). Rows and diagonals belong to a tile: each thread folds its
// two keys and leaves the sums in shared memory (ReadStage), where other warps sum them up (ReadCollector) while the next tile is computed.
#include "ptx/mbarrier.cuh"
#include "ptx/warp.cuh"
#include "score/read_targets.cuh"
#include "tile/line_values.cuh"

namespace foveal::device {

/// Reads whose terms the thread knows together with the probability: the factor, or the slope of the score_mod, depends on the score. Each has an array of
/// probability * factor, which score gradients then need no more than multiply.
constexpr bool is_early(int r) { return kSlopeOfScore || kFactorOfScore[r]; }
constexpr int early_before(int end) {
  int count = 0;
  for (int r = 0; r < end; ++r) count += is_early(r);
  return count;
}
constexpr int kEarlyReads = kCollects ? early_before(kReads) : 0;
constexpr int kEarlySlots = kEarlyReads > 0 ? kEarlyReads : 1;
using EarlyTerms = float[kEarlySlots][kBlockQ / 2];

constexpr bool is_staged(int r) { return kReadKind[r] == kRow || kReadKind[r] == kDiagonal; }
constexpr int staged_before(int end) {
  int count = 0;
  for (int r = 0; r < end; ++r) count += is_staged(r);
  return count;
}
constexpr int kStagedReads = kCollects ? staged_before(kReads) : 0;

/// Where a warp's pairs or a warp's sums are: everything but q and kv.
FOVEAL_DEVICE Position position_at(const AttentionArgs& args, const Position& base, int q, int key) {
  Position position = base;
  position.q = static_cast<int>(args.q_offset) + min(q, base.seqlen_q - 1);
  position.kv = static_cast<int>(args.kv_offset) + min(key, base.seqlen_kv - 1);
  return position;
}

/// Terms of a tile for each staged read: 8 rows for each warp, the sums of keys g and g + 8 in row g. A row read's columns are queries. A diagonal read's keys share
/// diagonals 8 queries apart: column c of row g holds queries c - 8 of key g and c of key g + 8. Zeros between the rows let a warp sum 32 diagonals without looking
/// where each begins and ends.
struct ReadStage {
  static constexpr int kZeros = kWarp;
  static constexpr int kRows = kBlockKv / 2, kPitch = kBlockQ + 8 + kZeros;  // the pairs of a warp fall on different banks
  static constexpr int kFloats = kZeros + kRows * kPitch;
  static constexpr int kBytes = 4 * kStagedReads * kFloats;
  float* data;

  template <int r>
  FOVEAL_DEVICE float* row(int row) const {
    return data + staged_before(r) * kFloats + kZeros + row * kPitch;
  }

  /// By all threads of the CTA.
  FOVEAL_DEVICE void clear() const {
    for (int i = threadIdx.x; i < kStagedReads * kFloats; i += blockDim.x) data[i] = 0;
  }
};

/// Sums that last while a warp stays with its keys and one query head.
struct ReadSums {
  float uniform[kReadSlots];
  float column[kReadSlots][2];  // the thread's two keys

  FOVEAL_DEVICE void clear() {
#pragma unroll
    for (int r = 0; r < kReadSlots; ++r) uniform[r] = column[r][0] = column[r][1] = 0;
  }
};

/// A warp's place in the scores: local positions of the thread's first query and key, what is the same for all pairs, and the values of its lines.
struct WarpPairs {
  const AttentionArgs& args;
  Position base;  // q, kv: not used
  int first_q, first_key;
  LineRegisters<kBlockQ> lines;

  /// partial: some pairs of the tile may not exist.
  template <bool partial = true>
  FOVEAL_DEVICE Pair pair(int i) const {
    const int q = first_q + fragment_column(i), key = first_key + 8 * fragment_row(i);
    if constexpr (partial) return lines.pair(i, position_at(args, base, q, key));
    Position position = base;
    position.q = static_cast<int>(args.q_offset) + q;
    position.kv = static_cast<int>(args.kv_offset) + key;
    return lines.pair(i, position);
  }

  /// Adds a tile. gradients: of the modified scores, 0 where a pair is not kept; early: the terms of early reads.
  template <int r>
  FOVEAL_DEVICE void collect(const float (&gradients)[kBlockQ / 2], const EarlyTerms& early, ReadSums& sums, ReadStage stage) const {
    const auto term = [&](int i) {
      if constexpr (is_early(r)) return early[early_before(r)][i];
      if constexpr (kFactorIsOne[r]) return gradients[i];
      const float product = gradients[i] * read_factor<r>(0.0f, pair(i), args.score);
      return gradients[i] == 0.0f ? 0.0f : product;
    };
    if constexpr (kReadKind[r] == kUniform || kReadKind[r] == kColumn || kReadKind[r] == kScatter || (kReadKind[r] == kElement && kReadStores[r])) {
#pragma unroll
      for (int i = 0; i < kBlockQ / 2; ++i) {
        if constexpr (kReadKind[r] == kUniform) sums.uniform[r] += term(i);
        if constexpr (kReadKind[r] == kColumn) sums.column[r][fragment_row(i)] += term(i);
        if constexpr (kReadKind[r] == kScatter) add_to_read<r>(args, 0.0f, pair(i), term(i));
        if constexpr (kReadKind[r] == kElement) {
          const bool exists = first_q + fragment_column(i) < base.seqlen_q && first_key + 8 * fragment_row(i) < base.seqlen_kv;
          if (exists) store_to_read<r>(args, 0.0f, pair(i), term(i));
        }
      }
    }
    if constexpr (is_staged(r)) {
      constexpr int shift = kReadKind[r] == kDiagonal;  // in blocks of 8 queries, of key g against key g + 8
      float* row = stage.row<r>(8 * (warp_id() - 4) + lane_id() / 4) + fragment_first_column(lane_id());
#pragma unroll
      for (int block = 0; block < kBlockQ / 8 + shift; ++block) {
        float2 folded = make_float2(0, 0);
        if (block >= shift) folded = make_float2(term(4 * (block - shift)), term(4 * (block - shift) + 1));
        if (block < kBlockQ / 8) folded = make_float2(folded.x + term(4 * block + 2), folded.y + term(4 * block + 3));
        *reinterpret_cast<float2*>(row + 8 * block) = folded;
      }
    }
    if constexpr (r + 1 < kReads) collect<r + 1>(gradients, early, sums, stage);
  }

  /// Adds what was summed over all tiles.
  template <int r>
  FOVEAL_DEVICE void finish(const ReadSums& sums) const {
    if constexpr (kReadKind[r] == kUniform) {
      float sum = sums.uniform[r];
#pragma unroll
      for (int lane = kWarp / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
      if (lane_id() == 0) add_to_read<r>(args, 0.0f, position_at(args, base, 0, 0), sum);
    }
    if constexpr (kReadKind[r] == kColumn) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float sum = quad_sum(sums.column[r][i]);
        const int key = first_key + 8 * i;
        if (lane_id() % 4 == 0 && key < base.seqlen_kv) add_to_read<r>(args, 0.0f, position_at(args, base, 0, key), sum);
      }
    }
    if constexpr (r + 1 < kReads) finish<r + 1>(sums);
  }
};

/// One of kCollectors warps that sum up staged terms, 32 queries or diagonals at a time. A lane keeps the sum of an element as long as it meets no
/// other: the ends of a clamped table and the far buckets of a table of distances come again and again.
struct ReadCollector {
  static constexpr int kCollectors = 2;
  static constexpr int kWarps = ReadStage::kRows / 8;  // whose rows are staged

  const AttentionArgs& args;
  const ReadStage stage;
  const int number;  // of this warp among the collectors
  i64 element[kReadSlots];
  float sum[kReadSlots];  // not yet added to it

  FOVEAL_DEVICE ReadCollector(const AttentionArgs& args, ReadStage stage, int number) : args(args), stage(stage), number(number) {
#pragma unroll
    for (int r = 0; r < kReadSlots; ++r) {
      element[r] = 0;
      sum[r] = 0;
    }
  }

  /// The tile at (first_q, first_key).
  template <int r>
  FOVEAL_DEVICE void collect(const Position& base, int first_q, int first_key) {
    if constexpr (kReadKind[r] == kRow) {
      for (int first = kWarp * number; first < kBlockQ; first += kWarp * kCollectors) {
        const float* column = stage.row<r>(0) + first + lane_id();
        float total = 0;
#pragma unroll 8
        for (int row = 0; row < ReadStage::kRows; ++row) total += column[row * ReadStage::kPitch];
        add<r>(position_at(args, base, first_q + first + lane_id(), first_key), total);
      }
    }
    if constexpr (kReadKind[r] == kDiagonal) {
      for (int first = kWarp * number - kBlockKv; first < kBlockQ; first += kWarp * kCollectors) {
        const int diagonal = first + lane_id();  // query minus key
        float total = 0;
        for (int warp = max(0, -first / 16 - 2); warp < min(kWarps, kBlockQ / 16 - first / 16); ++warp) {
          const float* row = stage.row<r>(8 * warp) + diagonal + 16 * warp + 8;
#pragma unroll
          for (int g = 0; g < 8; ++g) total += row[g * (ReadStage::kPitch + 1)];
        }
        add<r>(position_at(args, base, first_q + max(0, diagonal), first_key + max(0, -diagonal)), total);
      }
    }
    if constexpr (r + 1 < kReads) collect<r + 1>(base, first_q, first_key);
  }

  template <int r>
  FOVEAL_DEVICE void add(const Position& at, float total) {
    const i64 next = read_element<r>(args, 0.0f, at);
    if (__any_sync(~0u, next != element[r])) {
      add_warp_to_read<r>(args, element[r], sum[r]);
      element[r] = next;
      sum[r] = 0;
    }
    sum[r] += total;
  }

  /// Adds what is left, at the end of a walk.
  template <int r>
  FOVEAL_DEVICE void finish() {
    if constexpr (is_staged(r)) {
      add_warp_to_read<r>(args, element[r], sum[r]);
      sum[r] = 0;
    }
    if constexpr (r + 1 < kReads) finish<r + 1>();
  }
};

}  // namespace foveal::device
