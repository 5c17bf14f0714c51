#pragma once
// Gradients of trainable parameters from transposed tiles of score gradients: a warp holds 16 keys by kBlockQ queries. Each read is first summed along
// the lines on which its indices are constant, in a fixed order; what is left is added to exact sums, so that the result does not depend on the order
// in which CTAs run.
#include "ptx/warp.cuh"
#include "score/read_targets.cuh"
#include "tile/fragment.cuh"

namespace foveal::device {

constexpr bool has_diagonal_reads() {
  for (int r = 0; r < kReads; ++r)
    if (kCollects && kReadKind[r] == kDiagonal) return true;
  return false;
}

constexpr int kRawScores = kKeepScores ? kBlockQ / 2 : 1;  // kKeepScores: factors or slopes depend on the score
constexpr int kWarpKeys = 16;
constexpr int kStageRows = kWarpKeys / 2;
constexpr int kStagePitch = kBlockQ + 8;  // floats; the pairs of a warp fall on different banks
constexpr int kStageBytes = has_diagonal_reads() ? 4 * kStageRows * kStagePitch : 0;  // of one warp

/// Sums that last while a warp stays with its keys and one query head.
struct ReadSums {
  float uniform[kReadSlots];
  float column[kReadSlots][2];     // the thread's two keys
  i64 repeated[kReadSlots];        // diagonal: the element that all diagonals of the last tile belonged to, or -1
  float repeated_sum[kReadSlots];  // diagonal: not yet added to it

  FOVEAL_DEVICE void clear() {
#pragma unroll
    for (int r = 0; r < kReadSlots; ++r) {
      uniform[r] = column[r][0] = column[r][1] = repeated_sum[r] = 0;
      repeated[r] = -1;
    }
  }
};

/// A warp's place in the scores: local positions of the thread's first query and key, and what is the same for all pairs.
struct WarpPairs {
  const AttentionArgs& args;
  Position base;  // q, kv: not used
  int first_q, first_key;
  float* stage;   // of the warp

  FOVEAL_DEVICE Position at(int q, int key) const {
    Position position = base;
    position.q = static_cast<int>(args.q_offset) + min(q, base.seqlen_q - 1);
    position.kv = static_cast<int>(args.kv_offset) + min(key, base.seqlen_kv - 1);
    return position;
  }
  /// partial: some pairs of the tile may not exist.
  template <bool partial = true>
  FOVEAL_DEVICE Position pair(int i) const {
    const int q = first_q + fragment_column(i), key = first_key + 8 * fragment_row(i);
    if constexpr (partial) return at(q, key);
    Position position = base;
    position.q = static_cast<int>(args.q_offset) + q;
    position.kv = static_cast<int>(args.kv_offset) + key;
    return position;
  }

  /// Adds a tile. raws: scaled raw scores, where kept; gradients: of the modified scores, 0 where a pair is not kept.
  template <int r>
  FOVEAL_DEVICE void collect(const float (&raws)[kRawScores], const float (&gradients)[kBlockQ / 2], ReadSums& sums) const {
    const auto raw = [&](int i) { return raws[kKeepScores ? i : 0]; };
    const auto term = [&](int i) {
      const float product = gradients[i] * read_factor<r>(raw(i), pair(i), args.score);
      return gradients[i] == 0.0f ? 0.0f : product;
    };
    if constexpr (kReadKind[r] == kUniform || kReadKind[r] == kColumn || kReadKind[r] == kScatter || (kReadKind[r] == kElement && kReadStores[r])) {
#pragma unroll
      for (int i = 0; i < kBlockQ / 2; ++i) {
        if constexpr (kReadKind[r] == kUniform) sums.uniform[r] += term(i);
        if constexpr (kReadKind[r] == kColumn) sums.column[r][fragment_row(i)] += term(i);
        if constexpr (kReadKind[r] == kScatter) add_to_read<r>(args, raw(i), pair(i), term(i));
        if constexpr (kReadKind[r] == kElement) {
          const bool exists = first_q + fragment_column(i) < base.seqlen_q && first_key + 8 * fragment_row(i) < base.seqlen_kv;
          if (exists) store_to_read<r>(args, raw(i), pair(i), term(i));
        }
      }
    }
    if constexpr (kReadKind[r] == kRow) {
      float sum[kBlockQ / 4];  // of query 8 (c / 2) + c % 2 after the first, over the thread's two keys
#pragma unroll
      for (int c = 0; c < kBlockQ / 4; ++c) sum[c] = term(2 * c - c % 2) + term(2 * c - c % 2 + 2);
      add_rows<r>(sum);
    }
    if constexpr (kReadKind[r] == kDiagonal) {
      // A key and the one 8 after it share diagonals, 8 queries apart: folded, 8 rows by kBlockQ + 8 columns are left.
      float* row = stage + lane_id() / 4 * kStagePitch + fragment_first_column(lane_id());
      __syncwarp();
#pragma unroll
      for (int k = 0; k <= kBlockQ / 8; ++k) {
        float2 folded = make_float2(0, 0);
        if (k > 0) folded = make_float2(term(4 * (k - 1)), term(4 * (k - 1) + 1));
        if (k < kBlockQ / 8) folded = make_float2(folded.x + term(4 * k + 2), folded.y + term(4 * k + 3));
        *reinterpret_cast<float2*>(row + 8 * k) = folded;
      }
      __syncwarp();
      add_diagonals<r>(sums);
    }
    if constexpr (r + 1 < kReads) collect<r + 1>(raws, gradients, sums);
  }

  /// Sums over the eight lanes that hold different keys; each ends with the sums of a few queries.
  template <int r>
  FOVEAL_DEVICE void add_rows(float (&sum)[kBlockQ / 4]) const {
    int first = 0;
#pragma unroll
    for (int half = kBlockQ / 8, lane = 16; lane >= 4; half /= 2, lane /= 2) {
      const bool upper = lane_id() & lane;
#pragma unroll
      for (int c = 0; c < half; ++c) {
        const float sent = upper ? sum[c] : sum[c + half];
        const float kept = upper ? sum[c + half] : sum[c];
        sum[c] = kept + __shfl_xor_sync(~0u, sent, lane);
      }
      first += upper ? half : 0;
    }
#pragma unroll
    for (int c = 0; c < kBlockQ / 32; ++c) {
      const int q = first_q + 8 * ((first + c) / 2) + c % 2;
      if (q < base.seqlen_q) add_to_read<r>(args, 0.0f, at(q, 0), sum[c]);
    }
  }

  /// Sums along the diagonals of the folded tile, a diagonal each lane.
  template <int r>
  FOVEAL_DEVICE void add_diagonals(ReadSums& sums) const {
    const int tile_q = first_q - fragment_first_column(lane_id()), tile_key = first_key - lane_id() / 4;
    constexpr int kDiagonals = kStagePitch + kStageRows - 1, kRounds = divide_up(kDiagonals, kWarp);
    float sum[kRounds];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int first = kWarp * round + lane_id() - (kStageRows - 1);  // column in row 0
      sum[round] = 0;
#pragma unroll
      for (int row = 0; row < kStageRows; ++row) {
        const int column = first + row;
        if (column >= 0 && column < kStagePitch) sum[round] += stage[row * kStagePitch + column];
      }
    }
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int diagonal = kWarp * round + lane_id() - (kStageRows - 1) - 8;  // query minus key
      const int key = max(0, -diagonal);
      const i64 element = read_element<r>(args, 0.0f, at(tile_q + diagonal + key, tile_key + key));
      const i64 any = __shfl_sync(~0u, element, kWarp / 2 - 2);
      if (__all_sync(~0u, element == any || sum[round] == 0)) {  // clamped indices: one element for all
#pragma unroll
        for (int lane = kWarp / 2; lane > 0; lane /= 2) sum[round] += __shfl_xor_sync(~0u, sum[round], lane);
        if (sums.repeated[r] != any) {
          add_repeated<r>(sums);
          sums.repeated[r] = any;
        }
        sums.repeated_sum[r] += sum[round];
      } else if (sum[round] != 0) {
        const ParamGradient& gradient = args.gradient[kReadParam[r]];
        Bins::add(gradient.bins, gradient.elements, element, sum[round]);
      }
    }
  }

  template <int r>
  FOVEAL_DEVICE void add_repeated(ReadSums& sums) const {
    const ParamGradient& gradient = args.gradient[kReadParam[r]];
    if (sums.repeated[r] >= 0 && sums.repeated_sum[r] != 0 && lane_id() == 0) {
      Bins::add(gradient.bins, gradient.elements, sums.repeated[r], sums.repeated_sum[r]);
    }
    sums.repeated[r] = -1;
    sums.repeated_sum[r] = 0;
  }

  /// Adds what was summed over all tiles.
  template <int r>
  FOVEAL_DEVICE void finish(ReadSums& sums) const {
    if constexpr (kReadKind[r] == kUniform) {
      float sum = sums.uniform[r];
#pragma unroll
      for (int lane = kWarp / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
      if (lane_id() == 0) add_to_read<r>(args, 0.0f, at(0, 0), sum);
    }
    if constexpr (kReadKind[r] == kColumn) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float sum = quad_sum(sums.column[r][i]);
        const int key = first_key + 8 * i;
        if (lane_id() % 4 == 0 && key < base.seqlen_kv) add_to_read<r>(args, 0.0f, at(0, key), sum);
      }
    }
    if constexpr (kReadKind[r] == kDiagonal) add_repeated<r>(sums);
    if constexpr (r + 1 < kReads) finish<r + 1>(sums);
  }
};

}  // namespace foveal::device
