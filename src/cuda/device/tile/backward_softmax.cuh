#pragma once
// Backward: P recomputed from S and lse, with score_mod, mask and dropout.
#include "philox.cuh"
#include "score/far_row.cuh"
#include "tile/backward_scores.cuh"
#include "tile/kept_columns.cuh"
#include "tile/part.cuh"
#include "tile/tanh_ahead.cuh"

namespace foveal::device {

struct BackwardSoftmax : BackwardScores {
  using BackwardScores::BackwardScores;

  /// Early terms of a pair: `start` makes them from its factors.
  template <int r, class Start>
  FOVEAL_DEVICE void start_terms(EarlyTerms& early, int i, const Score& raw, const Pair& at, Start&& start) const {
    if constexpr (kRead[r].is_early) {
      const float factor =
          kEarlyFactors ? read_factor<r>(raw, at, args.attention.score) : read_factor_in_units<r>(raw, at, args.attention.score);
      early[early_before(r)][i] = start(factor);
    }
    if constexpr (r + 1 < kReads) start_terms<r + 1>(early, i, raw, at, start);
  }

  /// Raw products -> P, in place and packed for dV (after dropout). In place also times d score_mod / d score if kSlopeEarly. `dropped`:
  /// one bit for each register.
  FOVEAL_DEVICE void recompute_p(TileKind kind, float (&scores)[kBlockQ / 2], u32 (&p)[kBlockQ / 4], u32 (&dropped)[kBlockQ / 64],
                                 EarlyTerms& early, const HeadConstants& constants, const PairPrefetch& prefetched,
                                 const LsePrefetch& lse_prefetch, const BackwardTask& work, u32 use) const {
    if constexpr (kProblem.dropout) draw_dropout(dropped, prefetched, work, use);
    if (kind == TileKind::far) {
      recompute_p_far(scores, p, dropped, early, constants, prefetched, work, use);
    } else if (kind == TileKind::partial) {
      recompute_p_tile<true>(scores, p, dropped, early, constants, prefetched, lse_prefetch, work, use);
    } else {
      recompute_p_tile<false>(scores, p, dropped, early, constants, prefetched, lse_prefetch, work, use);
    }
  }

  /// Bitmask of dropped pairs.
  FOVEAL_DEVICE void draw_dropout(u32 (&dropped)[kBlockQ / 64], const PairPrefetch& prefetched, const BackwardTask& work, u32 use) const {
    const AttentionArgs& attention = args.attention;
    const WarpPairs pairs = warp_pairs(work, use, prefetched);
    const DropoutRow dropout(attention.dropout, dropout_row(attention, pairs.base.batch, pairs.base.head));
#pragma unroll
    for (int word = 0; word < kBlockQ / 64; ++word) {
      dropped[word] = 0;
#pragma unroll 1
      for (int i = 0; i < 32; ++i) {
        const int q = pairs.first_q + fragment_column(32 * word + i) + static_cast<int>(attention.q_offset);
        const int kv = pairs.first_key + 8 * fragment_row(i) + static_cast<int>(attention.kv_offset);
        if (!dropout.keep(static_cast<u32>(q), static_cast<u32>(kv))) dropped[word] |= 1u << i;
      }
    }
  }

  /// The word of register i, which a loop may count.
  FOVEAL_DEVICE static u32 dropped_word(const u32 (&dropped)[kBlockQ / 64], int i) {
    u32 word = dropped[0];
#pragma unroll
    for (int other = 1; other < kBlockQ / 64; ++other) word = i >= 32 * other ? dropped[other] : word;
    return word;
  }

  /// Queries that the thread's two keys keep, as columns of its scores.
  FOVEAL_DEVICE KeptColumns<Walk> kept_columns(const WarpPairs& pairs, const BackwardTask& work) const {
    KeptColumns<Walk> columns;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = pairs.first_key + 8 * r;
      columns.high[r] = key < work.sequence.len_kv ? work.sequence.len_q - 1 - pairs.first_q : -1;
      if constexpr (Walk::kLimitHigh) columns.high[r] = min(columns.high[r], key - args.band_low - pairs.first_q);
      if constexpr (Walk::kLimitLow) columns.low[r] = key - args.band_high - pairs.first_q;
    }
    return columns;
  }

  /// The same with far rows: the largest score is subtracted first. Rare, so one rolled loop over pairs, through local memory.
  FOVEAL_DEVICE void recompute_p_far(float (&scores)[kBlockQ / 2], u32 (&p)[kBlockQ / 4], const u32 (&dropped)[kBlockQ / 64],
                                     EarlyTerms& early, const HeadConstants& constants, const PairPrefetch& prefetched,
                                     const BackwardTask& work, u32 use) const {
    constexpr int kCount = kBlockQ / 2;
    const AttentionArgs& attention = args.attention;
    float raws[kCount], kept[kCount];
    EarlyTerms terms;
    PairPrefetch loaded;
    TiledValues tiled[kCount / 8];
    u32 dropped_words[kBlockQ / 64];
    const TiledView<true, Pairs> tiles(pipelines.pairs, use, first_key + 16 * (thread / kWarp), work.first_pair(args.attention),
                                       args.attention.score);
#pragma unroll
    for (int i = 0; i < kCount; ++i) raws[i] = scores[i];
#pragma unroll
    for (int i = 0; i < kPrefetched; ++i) loaded[i] = prefetched[i];
#pragma unroll
    for (int n = 0; n < kCount / 8; ++n) tiled[n] = tiles.load(n);
#pragma unroll
    for (int word = 0; word < kBlockQ / 64; ++word) dropped_words[word] = kProblem.dropout ? dropped[word] : 0;
    const WarpPairs pairs = warp_pairs(work, use, loaded);
    const KeptColumns<Walk> columns = kept_columns(pairs, work);
    const float* largest = static_cast<const float*>(attention.largest.data) +
                           stat_row<kProblem.varlen>(args, work.sequence, work.head_q(attention)) + pairs.first_q;
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {
      const int column = fragment_column(i);
      Pair at = pairs.pair(i);
      tiled[i / 8].put_into(at, i);
      const Score raw{raws[i], args.scale};
      if constexpr (kTanhAhead) at.tanh = fv_tanh(raw.raw, constants.tanh_factor);
      const float score = unfused_difference(score_in_units(raw, at, attention.score), largest[column]);
      float probability =
          exp2_real(fmaf(score, constants.exponent, -load_float(pipelines.lse(use) + 4 * (fragment_first_column(thread) + column))));
      bool keep = columns.keep(fragment_row(i), column);
      if constexpr (kMaskProgram) keep = mask_keep(at, attention.score) & keep;
      if (!keep) probability = 0;
      const auto times = [&](float factor) { return probability == 0.0f ? 0.0f : probability * factor; };
      raws[i] = kSlopeEarly ? times(slope_in_units(raw, at, attention.score)) : probability;
      const auto start = [&](float factor) { return !kEarlyFactors ? times(factor) : probability == 0.0f ? 0.0f : factor; };
      if constexpr (kEarlyReads > 0) start_terms<0>(terms, i, raw, at, start);
      kept[i] = probability;
      if constexpr (kProblem.dropout) kept[i] = dropped_words[i / 32] >> i % 32 & 1 ? 0.0f : probability * attention.dropout.keep_scale;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      scores[i] = raws[i];
#pragma unroll
      for (int read = 0; read < kEarlyReads; ++read) early[read][i] = terms[read][i];
    }
#pragma unroll
    for (int i = 0; i < kCount; i += 2) p[i / 2] = pack(Element{}, kept[i], kept[i + 1]);
    if constexpr (kPairTiles > 0) consumer_release_loaded(pipelines.pairs.pipeline, use);
  }

  template <bool partial>
  FOVEAL_DEVICE void recompute_p_tile(float (&scores)[kBlockQ / 2], u32 (&p)[kBlockQ / 4], const u32 (&dropped)[kBlockQ / 64],
                                      EarlyTerms& early, const HeadConstants& constants, const PairPrefetch& prefetched,
                                      const LsePrefetch& lse_prefetch, const BackwardTask& work, u32 use) const {
    if constexpr (!kTanhAhead || kInParts)
      return recompute_p_tile<partial>(scores, TanhOfEach{constants.tanh_factor, 1}, p, dropped, early, constants, prefetched, lse_prefetch,
                                       work, use);
    const float factor = constants.tanh_factor, most = kSpareRegisters ? largest_square(scores) : square_of_largest(scores);
    if (!partial && all_squares_small(most, TanhPolynomial<3>::limit(factor))) {
      recompute_p_tile<partial>(scores, TanhPolynomial<3>(factor, 1), p, dropped, early, constants, prefetched, lse_prefetch, work, use);
    } else if (all_squares_small(most, TanhPolynomial<5>::limit(factor))) {
      recompute_p_tile<partial>(scores, TanhPolynomial<5>(factor, 1), p, dropped, early, constants, prefetched, lse_prefetch, work, use);
    } else {
      recompute_p_tile<partial>(scores, AnyTanhAhead{factor, 1}, p, dropped, early, constants, prefetched, lse_prefetch, work, use);
    }
  }
  template <bool partial, class TanhAhead>
  FOVEAL_DEVICE void recompute_p_tile(float (&scores)[kBlockQ / 2], const TanhAhead& tanh_ahead, u32 (&p)[kBlockQ / 4],
                                      const u32 (&dropped)[kBlockQ / 64], EarlyTerms& early, const HeadConstants& constants,
                                      const PairPrefetch& prefetched, const LsePrefetch& lse_prefetch, const BackwardTask& work,
                                      u32 use) const {
    const AttentionArgs& attention = args.attention;
    const float scale = args.scale;
    const TiledView<true, Pairs> tiles(pipelines.pairs, use, first_key + 16 * (thread / kWarp), work.first_pair(args.attention),
                                       args.attention.score);
    TiledValues tiled;
    const u32 lse = pipelines.lse(use) + 4 * fragment_first_column(thread);
    const KeptColumns<Walk> columns = kept_columns(warp_pairs(work, use, prefetched), work);
    constexpr int kCount = kBlockQ / 2, kPart = kInParts ? registers_of_part(kCount, kPairsInPart) : kCount;
    static_assert(!kInParts || (kPairReads == 0 && kPairTiles == 0), "these are in registers of their own");
#pragma unroll 1
    for (int begin = 0; begin < kCount; begin += kPart) {  // once, but for scores of many instructions
      const WarpPairs pairs = warp_pairs(work, use, prefetched, 2 * begin);
#pragma unroll
      for (int i = 0; i < kPart; i += 4) {
        float lse2[2], kept[4], tanh[4];
        if (i % 8 == 0) tiled = tiles.load(i / 8);
        if constexpr (kFamily.prefetches_lse && !kInParts) {
          lse2[0] = lse_prefetch.value[i / 2];
          lse2[1] = lse_prefetch.value[i / 2 + 1];
        } else {
          load_pair(lse + 4 * (2 * begin + fragment_column(i)), lse2);
        }
        if constexpr (kTanhAhead) tanh_ahead.evaluate(tanh, scores, i);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int r = fragment_row(j), column = 2 * begin + fragment_column(i + j);
          Pair at = pairs.template pair<partial>(i + j);
          tiled.put_into(at, i + j);
          at.tanh = tanh[j];
          const Score raw{scores[i + j], scale};
          float logarithm;  // log2 of the probability
          if constexpr (kSumScore) {
            logarithm =
                fmaf(raw.raw, constants.gain, fmaf(offset_in_units<0>(raw, at, attention.score), constants.offset_unit, -lse2[j & 1]));
          } else {
            logarithm = fmaf(score_in_units(raw, at, attention.score), constants.exponent, -lse2[j & 1]);
          }
          kept[j] = exp2_real(logarithm);
          if constexpr (partial) {
            bool keep = columns.keep(r, column);
            if constexpr (kMaskProgram) keep = mask_keep(at, attention.score) & keep;
            kept[j] = keep ? kept[j] : 0.0f;
          }
          // dropped pairs may hold NaN
          const auto times = [&](float factor) { return partial && kept[j] == 0.0f ? 0.0f : kept[j] * factor; };
          scores[i + j] = kSlopeEarly ? times(slope_in_units(raw, at, attention.score)) : kept[j];
          const auto start = [&](float factor) { return !kEarlyFactors ? times(factor) : partial && kept[j] == 0.0f ? 0.0f : factor; };
          if constexpr (kEarlyReads > 0) start_terms<0>(early, i + j, raw, at, start);
          if constexpr (kProblem.dropout) {
            kept[j] = dropped_word(dropped, begin + i) >> (begin + i + j) % 32 & 1 ? 0.0f : kept[j] * attention.dropout.keep_scale;
          }
        }
        p[i / 2] = pack(Element{}, kept[0], kept[1]);
        p[i / 2 + 1] = pack(Element{}, kept[2], kept[3]);
      }
      if constexpr (kInParts) {
        rotate<kPart>(scores);
        rotate<kPart / 2>(p);
#pragma unroll
        for (int read = 0; read < kEarlyReads; ++read) rotate<kPart>(early[read]);
      }
    }
    if constexpr (kPairTiles > 0) consumer_release_loaded(pipelines.pairs.pipeline, use);
  }
};

}  // namespace foveal::device
