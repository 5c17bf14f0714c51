#pragma once
// Gradients of trainable parameters from transposed tiles of dS: a warp has 16 keys by kBlockQ queries. The terms of each read are first
// summed, in a fixed order, along the lines on which its indices are constant; the rest goes to exact sums, so that the result does not
// depend on the order of CTAs.
//
// Uniform reads and columns of the scores are summed in registers over the whole walk. Rows and diagonals change from tile to tile: each
// thread adds the terms of its two keys and stages them in shared memory (ReadStage), where collector warps sum them (ReadCollector) during
// the next tile.
#include "layout/sm90.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/warp.cuh"
#include "score/read_targets.cuh"
#include "tile/line_values.cuh"
#include "tile/read_bins.cuh"
#include "tile/read_tables.cuh"

namespace foveal::device {

/// Early reads: their terms are known with the probability, as the factor or the slope of the score_mod depends on the score. Each keeps an
/// array: of factors (0 for dropped pairs), or, if the gradient of the modified score is never formed without the slope, of probability *
/// factor / unit. A factor includes its unit: without it, it may be the raw score itself, whose register the tensor cores need.
constexpr bool kEarlyFactors = !kSlopeOfScore;
constexpr bool is_early(int r) { return kSlopeOfScore || (kFactorOfScore[r] && !kFollowsFromDk[r]); }
constexpr int early_before(int end) {
  int count = 0;
  for (int r = 0; r < end; ++r) count += is_early(r);
  return count;
}
constexpr int kEarlyReads = kCollectsTerms ? early_before(kReads) : 0;
constexpr int kEarlySlots = kEarlyReads > 0 ? kEarlyReads : 1;
using EarlyTerms = float[kEarlySlots][kBlockQ / 2];

/// Terms summed for one head, with the read's unit applied.
template <int r>
FOVEAL_DEVICE float sum_of_read(const AttentionArgs& args, const Position& at, float sum) {
  if constexpr (kEarlyFactors && is_early(r)) return sum;
  return apply_unit(sum, read_unit<r>({1, static_cast<float>(args.scale)}, at, args.score));
}

/// Does some read need terms of pairs?
constexpr bool has_terms(int r) { return r < kReads && (!kFollowsFromDk[r] || has_terms(r + 1)); }
constexpr bool kSumsTerms = kCollectsTerms && has_terms(0);
constexpr u32 kBinsBarrier = 2, kBinThreads = 256;  // the two consumer warpgroups

constexpr bool is_staged(int r) { return kReadKind[r] == kRow || kReadKind[r] == kDiagonal; }
constexpr int staged_before(int end) {
  int count = 0;
  for (int r = 0; r < end; ++r) count += is_staged(r);
  return count;
}
constexpr int kStagedReads = kCollectsTerms ? staged_before(kReads) : 0;

/// Is there a read, or a staged read, whose factor is finite if line values are tame?
constexpr bool any_tame(int r, bool staged) {
  return r < kReads && ((kFactorIsTame[r] && !kFactorIsFinite[r] && !is_early(r) && (!staged || is_staged(r))) || any_tame(r + 1, staged));
}
constexpr bool kTameReads = kCollectsTerms && any_tame(0, false);
/// Whether row terms are folded where register sums are accumulated, which needs the same factors; otherwise overlapped with the products
/// that follow.
constexpr bool any_diagonal(int r) { return r < kReads && (kReadKind[r] == kDiagonal || any_diagonal(r + 1)); }
constexpr bool kFoldsRows = kStagedReads > 0 && any_tame(0, true) && !any_diagonal(0);

constexpr int staged_floats_before(int end) {
  int count = 0;
  for (int r = 0; r < end; ++r)
    if (is_staged(r)) count += ReadStageShape::floats(kBlockQ, kBlockKv, kReadKind[r] == kDiagonal);
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
  static constexpr int kPitch = ReadStageShape::pitch(kBlockQ, kReadKind[r] == kDiagonal);
  template <int r>
  FOVEAL_DEVICE float* row(int row) const {
    return data + staged_floats_before(r) + kZeros + row * kPitch<r>;
  }

  /// By all threads of the CTA.
  FOVEAL_DEVICE void clear() const {
    for (int i = threadIdx.x; i < kBytes / 4; i += blockDim.x) data[i] = 0;
  }
};

/// Sums over all tiles of a warp's keys and one query head.
struct ReadSums {
  float uniform[kReadSlots];
  float column[kReadSlots][2];  // the thread's two keys
  BinUnit unit[kBinSlots];
  float largest[kBinSlots];             // of the thread's terms in a tile
  int window[kBinSlots];                // first bin of the window
  int low[kBinSlots], high[kBinSlots];  // range of the thread's bins in a tile

  FOVEAL_DEVICE void clear() {
#pragma unroll
    for (int r = 0; r < kReadSlots; ++r) uniform[r] = column[r][0] = column[r][1] = 0;
#pragma unroll
    for (int b = 0; b < kBinSlots; ++b) {
      unit[b].top = 0;
      largest[b] = 0;
      window[b] = 0;
      low[b] = 0x7fffffff;
      high[b] = 0;
    }
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
    if constexpr (kFollowsFromDk[r]) add_warp_sum<r>(args, base, sum);
    add_reads_of_dk<r + 1>(args, base, sum);
  }
}
constexpr bool any_follows_from_dk(int r) { return r < kReads && (kFollowsFromDk[r] || any_follows_from_dk(r + 1)); }

constexpr int kPrefetched = kPairReads > 0 ? kBlockQ / 2 : 1;
using PairPrefetch = PairValues[kPrefetched];

/// A warp's view of a tile of scores: local positions of the thread's first query and key, values common to all pairs, line values, and
/// prefetched pair reads.
struct WarpPairs {
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
    if constexpr (is_early(r)) return gradient * early[early_before(r)][i];
    if constexpr (kFactorIsOne[r]) return gradient;
    const float product = gradient * read_factor_in_units<r>(0.0f, pair<partial>(i), args.score);
    return kFactorIsFinite[r] || (kFactorIsTame[r] && !guarded) || gradient != 0.0f ? product : 0.0f;
  }

  /// Adds a pair to the sums in registers. partial: the tile is partial, or its line values are not tame.
  template <bool partial, int r = 0>
  FOVEAL_DEVICE void sum_up(float gradient, const EarlyTerms& early, int i, TileSums& tile, ReadSums& sums) const {
    if constexpr (r < kReads) {
      if constexpr (kReadKind[r] == kUniform && !kFollowsFromDk[r]) tile.uniform[r][i % 4] += term<r, partial, partial>(gradient, early, i);
      if constexpr (kReadKind[r] == kColumn) sums.column[r][fragment_row(i)] += term<r, partial, partial>(gradient, early, i);
      if constexpr (is_binned(r)) {
        constexpr int b = binned_before(r);
        sums.largest[b] = larger_size(sums.largest[b], term<r, partial, partial>(gradient, early, i));
        if constexpr (kBinWindow[r]) {
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
      if constexpr (kReadKind[r] == kRow) {
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
    if constexpr ((kReadKind[r] == kScatter && !is_binned(r)) || (kReadKind[r] == kElement && kReadStores[r])) {
#pragma unroll
      for (int i = 0; i < kBlockQ / 2; ++i) {
        if constexpr (kReadKind[r] == kScatter) add_to_read<r>(args, 0.0f, pair(i), sum_of_read<r>(args, base, term(i)));
        if constexpr (kReadKind[r] == kElement) {
          const bool exists = first_q + fragment_column(i) < base.seqlen_q && first_key + 8 * fragment_row(i) < base.seqlen_kv;
          if (exists) store_to_read<r>(args, 0.0f, pair(i), sum_of_read<r>(args, base, term(i)));
        }
      }
    }
    if constexpr (is_staged(r) && !kFoldsRows) {
      constexpr int shift = kReadKind[r] == kDiagonal;  // in blocks of 8 queries, between keys g and g + 8
      float* row = staged_row<r>(stage);
#pragma unroll
      for (int block = 0; block < kBlockQ / 8 + shift; ++block) {
        float2 folded = make_float2(0, 0);
        if (block >= shift) folded = make_float2(term(4 * (block - shift)), term(4 * (block - shift) + 1));
        if (block < kBlockQ / 8) folded = make_float2(folded.x + term(4 * block + 2), folded.y + term(4 * block + 3));
        if constexpr (kReadKind[r] == kRow) {
          *reinterpret_cast<float2*>(row + 8 * block) = folded;
        } else {
          row[8 * block] = folded.x;
          row[8 * block + 1] = folded.y;
        }
      }
    }
    if constexpr (r + 1 < kReads) collect<r + 1>(gradients, early, stage);
  }

  /// Publishes the magnitude and the range of a tile's binned terms. A barrier must follow.
  template <int r = 0>
  FOVEAL_DEVICE void publish_ranges(ReadSums& sums, ReadBins bins, u32 tile) const {
    if constexpr (r < kReads) {
      if constexpr (is_binned(r)) {
        constexpr int b = binned_before(r);
        bins.publish_max(bins.range_word<r>(tile, 0), __float_as_uint(sums.largest[b]));
        sums.largest[b] = 0;
        if constexpr (kBinWindow[r]) {
          bins.publish_max(bins.range_word<r>(tile, 1), 0x7fffffff - sums.low[b]);
          bins.publish_max(bins.range_word<r>(tile, 2), sums.high[b]);
          sums.low[b] = 0x7fffffff;
          sums.high[b] = 0;
        }
      }
      publish_ranges<r + 1>(sums, bins, tile);
    }
  }

  /// After that barrier.
  template <int r = 0>
  FOVEAL_DEVICE void add_to_bins(const float (&gradients)[kBlockQ / 2], const EarlyTerms& early, ReadSums& sums, ReadBins bins,
                                 u32 tile) const {
    if constexpr (r < kReads) {
      if constexpr (is_binned(r)) {
        constexpr int b = binned_before(r), kRangeWords = kBinWindow[r] ? 3 : 1;
        BinUnit& unit = sums.unit[b];
        const u32 largest = uniform(load_word(bins.range_word<r>(tile, 0)));
        bool inside = BinUnit::exponent(largest) != BinUnit::kNotFinite, moves = false;
        int low = 0, high = 0;
        if constexpr (kBinWindow[r]) {
          low = 0x7fffffff - uniform(load_word(bins.range_word<r>(tile, 1)));
          high = uniform(load_word(bins.range_word<r>(tile, 2)));
          inside = inside && high - low < kBinEntries[r];
          moves = low < sums.window[b] || high >= sums.window[b] + kBinEntries[r];
        }
        if (threadIdx.x == 128) {
          for (int word = 0; word < kRangeWords; ++word) store_word(bins.range_word<r>(tile + 2, word), 0);
        }
        if (!inside) {
          add_whole<r>(gradients, early);
        } else if (largest != 0) {
          if (unit.top != 0 && (moves || !unit.holds(largest))) {
            flush_bins<r>(unit, sums.window[b], bins);
            named_barrier_sync(kBinsBarrier, kBinThreads);
          }
          if (moves) sums.window[b] = max(0, low - (kBinEntries[r] - 1 - (high - low)) / 2);
          if (!unit.holds(largest)) unit.grow(largest);
          add_read_to_bins<r>(gradients, early, unit, sums.window[b], bins);
        }
      }
      add_to_bins<r + 1>(gradients, early, sums, bins, tile);
    }
  }

  static constexpr int kBinsAtOnce = 16;
  template <int r>
  FOVEAL_DEVICE void add_read_to_bins(const float (&gradients)[kBlockQ / 2], const EarlyTerms& early, BinUnit unit, int window,
                                      ReadBins bins) const {
    const float inverse = unit.inverse();
    const u32 first = bins.bins<r>() + 4 * (lane_id() % kBinCopies[r]);
#pragma unroll
    for (int i = 0; i < kBlockQ / 2; i += kBinsAtOnce) {
      int bin[kBinsAtOnce], value[kBinsAtOnce];
      u32 before[kBinsAtOnce];
      u32 wraps = 0;  // in the highest bit
#pragma unroll
      for (int j = 0; j < kBinsAtOnce; ++j) {
        bin[j] = read_bin<r>(0.0f, pair(i + j), args.score);
        value[j] = BinUnit::rounded(term<r, true>(gradients[i + j], early, i + j), inverse);
        before[j] = add_to_bin(first + 4 * kBinCopies[r] * (kBinWindow[r] ? bin[j] - window : bin[j]), value[j]);
      }
#pragma unroll
      for (int j = 0; j < kBinsAtOnce; ++j) wraps |= wrap(before[j], value[j]);
      if (__any_sync(~0u, int(wraps) < 0)) {
        float carries[kBinsAtOnce];
#pragma unroll
        for (int j = 0; j < kBinsAtOnce; ++j) {
          const float carry = (value[j] < 0 ? -0x1p32f : 0x1p32f) * unit.value();
          carries[j] = int(wrap(before[j], value[j])) < 0 ? carry : 0.0f;
        }
        add_to_elements<r>(bin, carries);
      }
    }
  }
  /// Did an integer addition wrap around? In the highest bit.
  FOVEAL_DEVICE static u32 wrap(u32 before, u32 value) { return (before ^ (before + value)) & (value ^ (before + value)); }

  /// Adds terms directly to exact sums: some are not finite, or beyond the window.
  template <int r>
  FOVEAL_DEVICE void add_whole(const float (&gradients)[kBlockQ / 2], const EarlyTerms& early) const {
#pragma unroll
    for (int i = 0; i < kBlockQ / 2; i += kBinsAtOnce) {
      int bin[kBinsAtOnce];
      float terms[kBinsAtOnce];
#pragma unroll
      for (int j = 0; j < kBinsAtOnce; ++j) {
        bin[j] = read_bin<r>(0.0f, pair(i + j), args.score);
        terms[j] = term<r, true>(gradients[i + j], early, i + j);
      }
      if constexpr (kBinWindow[r]) {
        const i64 first = first_element_of_bins<r>(args, base);
#pragma unroll
        for (int j = 0; j < kBinsAtOnce; ++j)
          add_to_element<r>(args, first + element_of_bin<r>(args, bin[j]), sum_of_read<r>(args, base, terms[j]));
      } else {
        add_to_elements<r>(bin, terms);
      }
    }
  }

  /// To the exact sums. Rare, hence a rolled loop.
  template <int r>
  FOVEAL_DEVICE void add_to_elements(const int (&bin)[kBinsAtOnce], const float (&terms)[kBinsAtOnce]) const {
    int bins[kBinsAtOnce];
    float sums[kBinsAtOnce];
#pragma unroll
    for (int j = 0; j < kBinsAtOnce; ++j) {
      bins[j] = bin[j];
      sums[j] = terms[j];
    }
    const i64 first = first_element_of_bins<r>(args, base);
#pragma unroll 1
    for (int j = 0; j < kBinsAtOnce; ++j)
      add_to_element<r>(args, first + element_of_bin<r>(args, bins[j]), sum_of_read<r>(args, base, sums[j]));
  }

  /// Moves bins to the exact sums; by all warps that added to them, after a barrier.
  template <int r>
  FOVEAL_DEVICE void flush_bins(BinUnit unit, int window, ReadBins bins) const {
    constexpr int kCount = kBinEntries[r] * kBinCopies[r];
    const i64 first_element = first_element_of_bins<r>(args, base);
    const float value = unit.value();
#pragma unroll 1
    for (int first = 0; first < kCount; first += kBinThreads) {
      const int i = first + threadIdx.x - 128;
      const u32 at = bins.bins<r>() + 4 * i;
      const int sum = i < kCount ? static_cast<int>(load_word(at)) : 0;
      if (sum != 0) store_word(at, 0);
      if (__any_sync(~0u, sum != 0))
        add_warp_to_read<r>(args, first_element + element_of_bin<r>(args, window + i / kBinCopies[r]),
                            sum_of_read<r>(args, base, static_cast<float>(sum) * value));
    }
  }

  template <int r = 0>
  FOVEAL_DEVICE void flush_all_bins(const ReadSums& sums, ReadBins bins) const {
    if constexpr (r < kReads) {
      if constexpr (is_binned(r)) {
        if (sums.unit[binned_before(r)].top != 0) flush_bins<r>(sums.unit[binned_before(r)], sums.window[binned_before(r)], bins);
      }
      flush_all_bins<r + 1>(sums, bins);
    }
  }

  /// Adds what was summed over all tiles.
  template <int r>
  FOVEAL_DEVICE void finish(const ReadSums& sums, ReadBins bins) const {
    if constexpr (r == 0 && kBinnedReads > 0) {
      named_barrier_sync(kBinsBarrier, kBinThreads);
      flush_all_bins(sums, bins);
    }
    if constexpr (kReadKind[r] == kUniform && !kFollowsFromDk[r]) add_warp_sum<r>(args, base, sums.uniform[r]);
    if constexpr (kReadKind[r] == kColumn) {
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

/// One of kCollectors warps that sum staged terms, 32 queries or diagonals at a time: eight lanes with four neighbours each, and four such
/// groups share the rows. The walk goes down, and the next tile shares all but the kBlockQ highest diagonals, so only these are finished
/// with a tile. A lane holds the sum of an element as long as its element stays the same, as at the clamped ends of a table or in far
/// buckets of relative positions.
struct ReadCollector {
  static constexpr int kCollectors = 2;
  static constexpr int kWarps = ReadStage::kRows / 8;  // that stage rows
  static constexpr int kAtOnce = kWarp * kCollectors;
  static constexpr int kRounds = (kBlockKv + kBlockQ) / kAtOnce, kFinished = kBlockQ / kAtOnce;  // over the diagonals of a tile

  const AttentionArgs& args;
  const ReadStage stage;
  const int number;             // index of this collector
  const int group, neighbours;  // of this lane
  Position base;                // of the tile, without q and kv
  int first_q, first_key;
  float diagonals[kReadSlots][kRounds][4];
  float rows[kReadSlots][kFinished][4];  // queries of the tile
  i64 element[kReadSlots];
  float sum[kReadSlots];  // not yet added to its element

  FOVEAL_DEVICE ReadCollector(const AttentionArgs& args, ReadStage stage, int number)
      : args(args), stage(stage), number(number), group(lane_id() / 8), neighbours(4 * (lane_id() % 8)) {
#pragma unroll
    for (int r = 0; r < kReadSlots; ++r) {
      element[r] = 0;
      sum[r] = 0;
#pragma unroll
      for (int i = 0; i < 4 * kRounds; ++i) diagonals[r][i / 4][i % 4] = 0;
    }
  }

  /// Does the next tile share diagonals with this one?
  FOVEAL_DEVICE bool continues_walk(int head, int q) const { return head == base.head && q == first_q - kBlockQ; }

  /// Reads a tile's terms from the staging buffer.
  FOVEAL_DEVICE void collect(const Position& tile_base, int q, int key) {
    base = tile_base;
    first_q = q;
    first_key = key;
    collect_read<0>();
  }

  /// Adds the tile's finished lines; the next tile continues the others.
  FOVEAL_DEVICE void add_tile() { add_lines<0>(); }

  /// Adds the rest at the end of a walk.
  FOVEAL_DEVICE void finish() {
#pragma unroll 1
    for (int round = kFinished; round < kRounds; round += kFinished) {
      first_q -= kBlockQ;
      add_diagonals<0>();
    }
    add_sums<0>();
  }

 private:
  template <int r>
  FOVEAL_DEVICE void collect_read() {
    constexpr int kPitch = ReadStage::kPitch<r>;
    if constexpr (kReadKind[r] == kRow) {
#pragma unroll
      for (int i = 0; i < kFinished; ++i) {
        const float* from = stage.row<r>(group) + kAtOnce * i + kWarp * number + neighbours;
#pragma unroll
        for (int j = 0; j < 4; ++j) rows[r][i][j] = 0;
#pragma unroll 8
        for (int row = 0; row < ReadStage::kRows; row += 4) add_four(rows[r][i], from + row * kPitch);
      }
    }
    if constexpr (kReadKind[r] == kDiagonal) {
      const float* from = stage.row<r>(2 * group) + neighbours + 2 * group + 8;
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const int first = first_diagonal(round);
#pragma unroll 2
        for (int warp = max(0, -first / 16 - 2); warp < min(kWarps, kBlockQ / 16 - first / 16); ++warp) {
          const float* row = from + 8 * warp * kPitch + first + 16 * warp;
          add_four(diagonals[r][round], row);
          add_four(diagonals[r][round], row + kPitch + 1);
        }
      }
    }
    if constexpr (r + 1 < kReads) collect_read<r + 1>();
  }

  FOVEAL_DEVICE static void add_four(float (&total)[4], const float* from) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    total[0] += four.x;
    total[1] += four.y;
    total[2] += four.z;
    total[3] += four.w;
  }

  /// Sums over the four groups; each keeps one of the four neighbours.
  FOVEAL_DEVICE float sum_groups(const float (&total)[4]) const {
    const bool high = group & 2, odd = group & 1;
    float two[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) two[i] = (high ? total[2 + i] : total[i]) + __shfl_xor_sync(~0u, high ? total[i] : total[2 + i], 16);
    return (odd ? two[1] : two[0]) + __shfl_xor_sync(~0u, odd ? two[0] : two[1], 8);
  }
  FOVEAL_DEVICE int kept_of_four() const { return group; }

  /// query - key within the tile, for the warp's first lane.
  FOVEAL_DEVICE int first_diagonal(int round) const { return kAtOnce * round + kWarp * number - kBlockKv; }

  template <int r>
  FOVEAL_DEVICE void add_lines() {
    if constexpr (kReadKind[r] == kRow) {
#pragma unroll
      for (int i = 0; i < kFinished; ++i) {
        const int query = first_q + kAtOnce * i + kWarp * number + neighbours + kept_of_four();
        add<r>(position_at(args, base, query, first_key), sum_groups(rows[r][i]));
      }
    }
    if constexpr (kReadKind[r] == kDiagonal) add_finished<r>();
    if constexpr (r + 1 < kReads) add_lines<r + 1>();
  }

  /// Adds the finished diagonals and shifts the others up.
  template <int r>
  FOVEAL_DEVICE void add_finished() {
#pragma unroll
    for (int round = kRounds - 1; round >= 0; --round) {
      if (round >= kRounds - kFinished) {
        const int difference = first_q - first_key + first_diagonal(round) + neighbours + kept_of_four();
        add<r>(position_on_diagonal(args, base, difference), sum_groups(diagonals[r][round]));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) diagonals[r][round][i] = round < kFinished ? 0.0f : diagonals[r][max(round - kFinished, 0)][i];
    }
  }

  template <int r>
  FOVEAL_DEVICE void add_diagonals() {
    if constexpr (kReadKind[r] == kDiagonal) add_finished<r>();
    if constexpr (r + 1 < kReads) add_diagonals<r + 1>();
  }

  template <int r>
  FOVEAL_DEVICE void add(const Position& at, float total) {
    const i64 next = read_element<r>(args, 0.0f, at);
    if (__any_sync(~0u, next != element[r])) {
      add_warp_to_read<r>(args, element[r], sum[r]);
      element[r] = next;
      sum[r] = 0;
    }
    sum[r] += sum_of_read<r>(args, base, total);
  }

  template <int r>
  FOVEAL_DEVICE void add_sums() {
    if constexpr (is_staged(r)) {
      add_warp_to_read<r>(args, element[r], sum[r]);
      sum[r] = 0;
    }
    if constexpr (r + 1 < kReads) add_sums<r + 1>();
  }
};

}  // namespace foveal::device
