#pragma once
// Backward: a warp's view of a transposed tile of scores, 16 keys by kBlockQ queries, and what
// its pairs contribute to gradients of parameters.
#include "score/read_targets.cuh"
#include "tile/backward_family.cuh"
#include "tile/line_values.cuh"
#include "tile/read_tables.cuh"

namespace foveal::device {

/// Early reads (is_early): their terms are known with the probability, as the factor or the slope of the score_mod depends on the score.
/// Each keeps an array: of factors (0 for dropped pairs), or, if the gradient of the modified score is never formed without the slope, of
/// probability * factor / unit. A factor includes its unit: without it, it may be the raw score itself, whose register the tensor cores
/// need.
constexpr bool kEarlyFactors = !kSlopeOfScore;
constexpr int early_before(int end) {
  int count = 0;
  for (int r = 0; r < end; ++r) count += kRead[r].is_early;
  return count;
}
constexpr int kEarlyReads = kConfig.collects_terms() ? early_before(kReads) : 0;
constexpr int kEarlySlots = kEarlyReads > 0 ? kEarlyReads : 1;
using EarlyTerms = float[kEarlySlots][kBlockQ / 2];

/// Terms summed for one head, with the read's unit applied.
template <int r>
FOVEAL_DEVICE float sum_of_read(const AttentionArgs& args, const Position& at, float sum) {
  if constexpr (kEarlyFactors && kRead[r].is_early) return sum;
  return apply_unit(sum, read_unit<r>({1, static_cast<float>(args.scale)}, at, args.score));
}

constexpr int kPrefetched = kPairReads > 0 ? kBlockQ / 2 : 1;
using PairPrefetch = PairValues[kPrefetched];

/// A warp's view of a tile of scores: local positions of the thread's first query and key, values common to all pairs, line values, and
/// prefetched pair reads.
struct TilePairs {
  const AttentionArgs& args;
  Position base;  // without q and kv
  int first_q, first_key;
  LineView<kBlockQ> lines;
  const PairPrefetch& prefetched;
  ReadTables tables;

  /// partial: some pairs of the tile may be out of bounds.
  template <bool partial = true>
  FOVEAL_DEVICE Position position(int i) const {
    const int origin_q = static_cast<int>(args.q_offset) + first_q, origin_kv = static_cast<int>(args.kv_offset) + first_key;
    Position position = base;
    position.q_step = fragment_column(i);
    position.kv_step = 8 * fragment_row(i);
    if constexpr (partial) {
      position.q_step = min(position.q_step, base.seqlen_q - 1 - first_q);
      position.kv_step = min(position.kv_step, base.seqlen_kv - 1 - first_key);
    }
    position.q = origin_q + position.q_step;
    position.kv = origin_kv + position.kv_step;
    return position;
  }
  template <bool partial = true>
  FOVEAL_DEVICE Pair pair(int i) const {
    Pair pair = lines.pair(i, position<partial>(i));
    put_pair_values<true, false, kBlockKv>(pair, prefetched, i);
    tables.put_into(pair);
    return pair;
  }

  /// A pair's contribution to a read's gradient, in the read's units. guarded: the factor of a dropped pair may be infinite or NaN.
  /// gradient: of the modified score, or dP - delta if the early terms contain the probability; 0 for dropped pairs.
  template <int r, bool partial, bool guarded = true>
  FOVEAL_DEVICE float term(float gradient, const EarlyTerms& early, int i) const {
    if constexpr (kRead[r].is_early) return gradient * early[early_before(r)][i];
    if constexpr (kRead[r].factor_is_one) return gradient;
    const float product = gradient * read_factor_in_units<r>(0.0f, pair<partial>(i), args.score);
    return kRead[r].factor_is_finite || (kRead[r].factor_is_tame && !guarded) || gradient != 0.0f ? product : 0.0f;
  }
};

}  // namespace foveal::device
