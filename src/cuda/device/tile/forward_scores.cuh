#pragma once
// From raw products q . k in registers to scores: score_mod and mask, before or fused with the softmax.
#include "softmax/bounded.cuh"
#include "tile/forward_sm90.cuh"
#include "tile/tanh_ahead.cuh"

namespace foveal::device {

constexpr bool kBounded = kCappedScore && kWideRange;
/// Whether probabilities of capped scores are guessed (softmax/bounded.cuh) once P V has released its operand.
constexpr bool kGuesses = kBounded && !kProblem.dropout && !kConfig.intra_warpgroup_overlap && !kHasLines && kPairTiles == 0;
/// Whether partial tiles take their capped scores in a rolled loop if arguments are large: nothing else is needed for a pair then. Not for
/// f16, which takes small ones that way too, nor for few queries, where some registers would spill.
constexpr bool kCapsInParts = kBounded && !kMaskProgram && kPairTiles == 0 && !kConfig.is_decode();
/// Does each score need work after the product q . k? Otherwise the product includes the offsets.
constexpr bool kModifiesScores = kHasScore && !kOffsetsFirst && !kOffsetsAreColumns;
/// Whether to test early, while scores are in flight, if the maxima can be kept. Slower where other work precedes or follows at once.
constexpr bool kChecksMaxEarly = !kModifiesScores && !kConfig.intra_warpgroup_overlap;
constexpr int kPrefetched = kPairReads > 0 ? kBlockKv / 2 : 1;
using PairPrefetch = PairValues[kPrefetched];

constexpr u32 kSchedulerBarrier = 1;  // one for each warpgroup
constexpr u32 kKeptBarrier = kSchedulerBarrier + kConfig.consumers;
constexpr u32 kGroupBarrier = kKeptBarrier + 1;  // one for each warpgroup
constexpr u32 kEndBarrier = kGroupBarrier + kConfig.consumers;
constexpr u32 kTableBarrier = kEndBarrier + 1;

/// Scores to powers of two.
FOVEAL_DEVICE float score_exponent(const Sm90Args& args, float scale) { return score_unit({1, scale}, {}, args.attention.score) * kLog2e; }

/// Values that are constant for a head, or for a thread's rows in a task.
struct HeadConstants {
  float gain, offset_unit[kOffsets > 0 ? kOffsets : 1];  // of a sum, to powers of two; or offsets in units of raw scores
  float tanh_factor, tanh_times;
  float tanh_limit;  // largest |raw| for the polynomial of the exponents
  TanhPolynomial<3> exponents;
  float highest_sum;  // largest sum for which guessed probabilities hold; 0: no guessing
  RowValues rows[2];
  RowColumns columns;
};

/// What the score registers currently hold.
enum class ScoreForm { products, scores, probabilities };

template <class TileRows>
struct TileScores : TileRows {
  using TileRows::args, TileRows::group, TileRows::thread, TileRows::query_of, TileRows::head_of, TileRows::exists;
  const Pipelines& pipelines;
  /// kOffsetsInScores, when tasks are redone: raw scores are scaled first, so that offsets of any size are representable.
  const bool exact;
  const float exponent;  // scores to powers of two

  FOVEAL_DEVICE TileScores(const Sm90Args& args, const Pipelines& pipelines, int group)
      : TileRows{args, group, static_cast<int>(threadIdx.x % 128)},
        pipelines(pipelines),
        exact(kOffsetsInScores && pipelines.max_policy() == MaxPolicy::every_tile),
        exponent(score_exponent(args, offset_scale())) {}

  FOVEAL_DEVICE bool is_exact() const { return kOffsetsInScores && __any_sync(~0u, exact); }
  /// Divisor of the offsets.
  FOVEAL_DEVICE float offset_scale() const { return kOffsetsInScores && exact ? 1.0f : args.scale; }

  /// The pair of register i, see tile/head_rows.cuh.
  template <bool partial>
  FOVEAL_DEVICE Position position(const ForwardTask& work, int i) const {
    return TileRows::template position<partial>(work, i);
  }
  /// The same for register begin + i of a rolled loop, of which the compiler knows i.
  template <bool partial>
  FOVEAL_DEVICE Position position(const ForwardTask& work, int begin, int i) const {
    Position at = position<partial>(work, i);
    at.kv += 2 * begin;
    if constexpr (partial) at.kv = min(at.kv, static_cast<int>(args.attention.kv_offset) + work.sequence.len_kv - 1);
    at.key_block = 0;
    return at;
  }
  FOVEAL_DEVICE LineView<kBlockKv> lines_of(u32 use) const {
    return {pipelines.lines(use), 64 * group + fragment_first_row(thread), fragment_first_column(thread)};
  }
  FOVEAL_DEVICE TiledView<false, Pairs> pairs_of(u32 use) const {
    return {pipelines.pairs, use, 64 * group + 16 * (thread / kWarp), {}, args.attention.score};
  }

  FOVEAL_DEVICE HeadConstants head_constants(const ForwardTask& work) const {
    HeadConstants head;
    const ScoreArgs& score = args.attention.score;
    const Score one{1, offset_scale()};
    const Position at{work.task.batch, work.task.head, 0, 0, work.sequence.len_q, work.sequence.len_kv};
#pragma unroll
    for (int r = 0; r < 2; ++r) head.rows[r].load(position<true>(work, 2 * r), score);
    if constexpr (kSumScore) {
      head.gain = score_gain(one, at, score) * kLog2e;
      find_offset_units<0>(head, at, score, kLog2e);
    }
    if constexpr (kOffsetsInScores) find_offset_units<0>(head, at, score, 1);
    if constexpr (kOffsetsAreColumns) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float value[kOffsetSlots];
        find_row_factors(value, head, work, r);
        head.columns.put(r, value, exact);
      }
    }
    if constexpr (kTanhAhead) {
      head.tanh_factor = tanh_factor(one, at, score);
      head.tanh_times = tanh_times(one, at, score);
      head.tanh_limit = fminf(TanhPolynomial<3>::limit(head.tanh_factor), bounded_limit(head.tanh_factor, head.tanh_times));
      head.exponents = {head.tanh_factor, head.tanh_times * exponent};
      head.highest_sum = highest_guessed_sum(head.exponents, head.tanh_times * exponent, head.tanh_limit);
    }
    return head;
  }
  template <int o>
  FOVEAL_DEVICE void find_offset_units(HeadConstants& head, const Position& at, const ScoreArgs& score, float unit) const {
    if constexpr (o < kOffsets) {
      head.offset_unit[o] = offset_unit<o>(Score{1, offset_scale()}, at, score) * unit;
      find_offset_units<o + 1>(head, at, score, unit);
    }
  }
  /// Adds the offsets of a sum, in powers of two, to `onto`.
  template <int o = 0>
  FOVEAL_DEVICE float add_offsets(float onto, const HeadConstants& head, const Score& raw, const Pair& at) const {
    if constexpr (o < kOffsets) {
      const float offset = offset_in_units<o>(raw, at, args.attention.score);
      if constexpr (kOffset[o].is_scaled) return add_offsets<o + 1>(onto + offset, head, raw, at);
      return add_offsets<o + 1>(fmaf(offset, unit_of_offset<o>(head, raw, at), onto), head, raw, at);
    }
    return onto;
  }
  template <int o>
  FOVEAL_DEVICE float unit_of_offset(const HeadConstants& head, const Score& raw, const Pair& at) const {
    if constexpr (kOffset[o].has_row) return head.offset_unit[o] * offset_row<o>(raw, at, args.attention.score);
    return head.offset_unit[o];
  }
  template <int o = 0>
  FOVEAL_DEVICE void find_row_factors(float (&value)[kOffsetSlots], const HeadConstants& head, const ForwardTask& work, int r) const {
    if constexpr (o < kOffsets) {
      Pair at;
      static_cast<Position&>(at) = position<true>(work, 2 * r);
      value[o] = unit_of_offset<o>(head, Score{0, offset_scale()}, at);
      find_row_factors<o + 1>(value, head, work, r);
    }
  }
  /// Largest |raw| for exponents that need no maximum.
  FOVEAL_DEVICE float bounded_limit(float factor, float times) const {
    return kHighestExponent * reciprocal_approx(fabsf(factor * (times * exponent)));
  }

  /// Applies score_mod and mask (-inf where dropped), in units of `exponent`. `kept`: shared address of the bitmask of columns that some
  /// row keeps, or 0. Returns ScoreForm::probabilities if the softmax is done as well; `rescales` is then as from
  /// OnlineSoftmax::update_max.
  template <bool partial>
  FOVEAL_DEVICE ScoreForm transform(float (&scores)[kBlockKv / 2], OnlineSoftmax& softmax, bool& rescales, float (&rescale)[2],
                                    const HeadConstants& head, const PairPrefetch& prefetched, const ForwardTask& work, u32 use,
                                    u32 kept) const {
    const auto with = [&]<bool in_parts = false>(const auto& tanh_ahead) {
      transform<partial, ScoreForm::scores, in_parts>(scores, softmax, tanh_ahead, head, prefetched, work, use, kept);
    };
    const float factor = head.tanh_factor, times = head.tanh_times;
    if constexpr (kInParts) {
      with.template operator()<true>(TanhOfEach{factor, times});
      return ScoreForm::scores;
    }
    const float most = kTanhAhead ? largest(scores) : 0.0f;
    if constexpr (kBounded) {
      const auto update = [&]<int terms>(const TanhPolynomial<terms>& polynomial) {
        ExponentAhead<terms> exponent_ahead{polynomial};
        bounded_shift(softmax, exponent, exponent_ahead.shift);
        with(exponent_ahead);
        rescales = update_bounded<partial>(softmax, scores, exponent, rescale);
        return ScoreForm::probabilities;
      };
      if (!kGuesses && !partial && all_small(most, head.tanh_limit)) return update(head.exponents);
      if (all_small(most, fminf(TanhPolynomial<4>::limit(factor), bounded_limit(factor, times)))) {
        return update(TanhPolynomial<4>(factor, times * exponent));
      }
    }
    constexpr bool kRolled = partial && kCapsInParts;
    if (kTanhAhead && all_small(most, TanhPolynomial<5>::limit(factor))) {
      with.template operator()<kRolled>(TanhPolynomial<5>(factor, times));
    } else {
      with.template operator()<kRolled>(AnyTanhAhead{factor, times});
    }
    return ScoreForm::scores;
  }
  /// Columns that the thread's rows keep, without those that a mask program drops, from its first column on. low: with kLimitLow only.
  FOVEAL_DEVICE void find_limits(int (&low)[2], int (&high)[2], const ForwardTask& work) const {
    const int first_kv = work.walk.tile * kBlockKv + fragment_first_column(thread);
    const int last_kv = work.sequence.len_kv - 1;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      high[r] = last_kv - first_kv;
      if constexpr (Walk::kLimitHigh) high[r] = min(high[r], query_of(work, r) + args.band_high - first_kv);
      if constexpr (Walk::kLimitLow) low[r] = query_of(work, r) + args.band_low - first_kv;
    }
  }
  /// in_parts: by a rolled loop over a few registers at a time, so that little code is compiled: for scores of many instructions
  /// (kInParts), and for capped scores of partial tiles whose arguments are large, which are rare.
  template <bool partial, ScoreForm to, bool in_parts, class TanhAhead>
  FOVEAL_DEVICE void transform(float (&scores)[kBlockKv / 2], OnlineSoftmax& softmax, const TanhAhead& tanh_ahead,
                               const HeadConstants& head, const PairPrefetch& prefetched, const ForwardTask& work, u32 use,
                               u32 kept) const {
    const AttentionArgs& attention = args.attention;
    const float scale = args.scale;
    const LineView<kBlockKv> lines = lines_of(use);
    const TiledView<false, Pairs> tiles = pairs_of(use);
    TiledValues tiled;
    int low[2], high[2];
    u64 kept_columns = 0;  // a bit for each of the thread's columns
    float tanh[kTanhAtOnce];
    find_limits(low, high, work);
    constexpr int kCount = kBlockKv / 2, kPart = in_parts ? registers_of_part(kCount, kInParts ? kPairsInPart : 16) : kCount;
    static_assert(!in_parts || (kPairReads == 0 && kPairTiles == 0), "these are in registers of their own");
#pragma unroll 1
    for (int begin = 0; begin < kCount; begin += kPart) {
      const LineView<kBlockKv> lines_of_part = in_parts ? lines.from(2 * begin) : lines;
#pragma unroll
      for (int i = 0; i < kPart; ++i) {
        const int column = 2 * begin + fragment_column(i), r = fragment_row(i);
        Pair at = lines_of_part.pair(i, in_parts ? position<partial>(work, begin, i) : position<partial>(work, i));
        if constexpr (kModifiesScores) {
          put_pair_values<false, true, kBlockKv>(at, prefetched, i);
          if (i % 8 == 0) tiled = tiles.load(i / 8);
          tiled.put_into(at, i);
          pipelines.tables().put_into(at);
          head.rows[r].put_into(at);
        }
        if (kTanhAhead && i % kTanhAtOnce == 0) tanh_ahead.evaluate(tanh, scores, i);
        at.tanh = tanh[i % kTanhAtOnce];
        const Score raw{scores[i], scale};
        if constexpr (to == ScoreForm::probabilities) {
          const float offset = add_offsets(-softmax.reference[r] * exponent, head, raw, at);
          scores[i] = exp2_real(fmaf(raw.raw, head.gain, offset));
          softmax.sum[r] += scores[i];
        } else {
          scores[i] = kOffsetsInScores && kModifiesScores ? add_offsets(raw.raw, head, raw, at) : score_in_units(raw, at, attention.score);
        }
        if constexpr (partial) {
          bool keep = column <= high[r];
          if constexpr (Walk::kLimitLow) keep = keep && column >= low[r];
          if constexpr (kMaskProgram) {
            keep = mask_keep(at, attention.score) & keep;
            if (keep && exists(work, r)) kept_columns |= u64(1) << (begin / 2 + 2 * (i / 4) + i % 2);
          }
          scores[i] = keep ? scores[i] : -infinity();
        }
      }
      if constexpr (in_parts) rotate<kPart>(scores);
    }
    if constexpr (kPairTiles > 0 && kModifiesScores) consumer_release_loaded(pipelines.pairs.pipeline, use);
    if (partial && kMaskProgram && kept != 0) note_kept(kept_columns, kept);
  }
  /// Tells all warpgroups which of the thread's columns some row keeps.
  FOVEAL_DEVICE void note_kept(u64 kept_columns, u32 kept) const {
#pragma unroll
    for (int word = 0; word < kKeptWords; ++word) {
      u32 columns = static_cast<u32>(kept_columns >> 32 * word);
#pragma unroll
      for (int lane = kWarp / 2; lane >= 4; lane /= 2) columns |= __shfl_xor_sync(~0u, columns, lane);
      if (thread % kWarp < 4) or_shared(kept + 4 * (4 * word + thread % 4), columns);
    }
  }

  /// Can the row maxima be kept for the next tile?
  FOVEAL_DEVICE bool max_holds(const OnlineSoftmax& softmax) const {
    return softmax.max_holds<kHasScore>(exponent, pipelines.max_policy() == MaxPolicy::first_tile);
  }

  /// OnlineSoftmax::update_max, with sticky overflow.
  FOVEAL_DEVICE bool update_max(OnlineSoftmax& softmax, const float (&scores)[kBlockKv / 2], float (&rescale)[2]) const {
    if constexpr (kWideRange) softmax.keep_overflow();
    return softmax.update_max(scores, exponent, rescale);
  }

  /// Is this column of the tile kept by some row?
  FOVEAL_DEVICE static bool is_kept(u32 kept, int column) {
    const int bit = 2 * (column / 8) + column % 2;
    return load_word(kept + 4 * (bit / 32 * 4 + column % 8 / 2)) >> bit % 32 & 1;
  }

  /// Zeroes values of a partial tile that no row keeps: they may be NaN, and 0 * NaN = NaN. With a mask program all warpgroups take part;
  /// otherwise only the tail of the sequence is concerned, and each warpgroup zeroes for itself.
  FOVEAL_DEVICE void clear_values(const ForwardTask& work, KvTile values, u32 kept) const {
    constexpr int kPieces = kShared.value_bytes / 16 / kBlockKv;  // 16-byte pieces of one row
    if constexpr (kMaskProgram) named_barrier_sync(kKeptBarrier, 128 * kConfig.consumers);
    const int exist = work.sequence.len_kv - work.walk.tile * kBlockKv;
    for (int i = thread; i < kBlockKv * kPieces; i += 128) {
      const int row = i % kBlockKv;
      const bool clear = kMaskProgram ? !is_kept(kept, row) : row >= exist;
      if (clear) store_zeros(values.address + i / kBlockKv / 8 * KvTile::kChunkBytes + row * kChunkRowBytes + i / kBlockKv % 8 * 16);
    }
    fence_async_proxy();
    if constexpr (kMaskProgram) {
      named_barrier_sync(kKeptBarrier, 128 * kConfig.consumers);
    } else {
      named_barrier_sync(kGroupBarrier + group, 128);
    }
  }

  FOVEAL_DEVICE void write_lse(const ForwardTask& work, const float (&lse)[2]) const {
    const Rows& to = args.attention.lse;
    if (to.data == nullptr || thread % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!exists(work, r)) continue;
      static_cast<float*>(
          to.data)[work.task.batch * to.batch + head_of(work, r) * to.head + (work.sequence.first_q + query_of(work, r)) * to.seq] = lse[r];
    }
  }
};

}  // namespace foveal::device
