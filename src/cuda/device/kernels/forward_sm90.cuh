// Fused attention forward for Hopper, 16-bit types: one warp loads tiles by TMA, one to three warpgroups of 64 query rows compute.
//
// Each warpgroup keeps two products in flight: while the tensor cores do S' = Q K'^T of the next kv tile and O += P V of this one, the
// softmax of the other warpgroups fills the other units; named barriers take turns at issuing (kTakeTurns). Tasks follow each other without a
// seam: the first product of the next task is issued together with the last one of this task.
//
// Where there are few queries, the heads that share keys are rows of one tile (kPackedHeads > 1): row r is query r / kPackedHeads of head r % kPackedHeads of
// the group, and a task's head is a kv head. Where these are few tasks, several take a part each of the keys (kSplit), and kernels/merge_splits_sm90.cuh makes
// one result of theirs.
//
// config.cuh: Element, SeqlenIndex; kHeadDim, kHeadDimV (multiples of 8), kBlockKv (of 16), kConsumers, kStages, kQueryStages, kProducerRegisters,
// kConsumerRegisters, kTileSource (a TileSource), kPairStages; kTakeTurns, kOrdered, kFewQueries, kPackedHeads, kSplit, kVarlen, kKeyRows,
// kPageSize, SeqlenKvIndex, kDropout.
#include "philox.cuh"
#include "softmax/bounded.cuh"
#include "tile/forward_sm90.cuh"
#include "tile/part.cuh"
#include "tile/tanh_ahead.cuh"

namespace foveal::device {

constexpr bool kBounded = kCappedScore && kAnyExponent;
/// Whether probabilities of capped scores are guessed (softmax/bounded.cuh), once P V has given its operand back.
constexpr bool kGuesses = kBounded && !kDropout && !kOrdered && !kHasLines && kPairTiles == 0;
/// Is there something to be done for each score when the product q . k is there? Else offsets are in it.
constexpr bool kScoresToMake = kHasScore && !kOffsetsFirst && !kOffsetsAreColumns;
/// Whether maxima last is found out while scores are under way. Where other work follows at once, or goes before, that was slower.
constexpr bool kLooksAhead = !kScoresToMake && !kOrdered;
/// Outside the loop over full tiles causal rows have partial ones only, but for a few of rows beyond the keys: the text of a score for full tiles, most of what there
/// is to compile, stands once. Without a score there is little of it, and registers are short.
constexpr bool kPartialOutside = kScoresToMake && (kSource == TileSource::causal || kSource == TileSource::band);
static_assert(!kOffsetsInScores || (kAnyExponent && !kSplit && !kPart && !kFewQueries), "tasks are done again, each in units of its own");
constexpr int kAhead = kPairReads > 0 ? kBlockKv / 2 : 1;
using AheadValues = PairValues[kAhead];
constexpr bool kHolds = !kFewQueries;

constexpr u32 kTurnBarrier = 1;  // one for each group
constexpr u32 kKeptBarrier = kTurnBarrier + kConsumers;
constexpr u32 kGroupBarrier = kKeptBarrier + 1;  // one for each group
constexpr u32 kEndBarrier = kGroupBarrier + kConsumers;
constexpr u32 kTableBarrier = kEndBarrier + 1;

/// Scores to powers of two.
FOVEAL_DEVICE float score_exponent(const Sm90Args& args, float scale) { return score_unit({1, scale}, {}, args.attention.score) * kLog2e; }

/// One warpgroup: 64 rows of every task.
struct Consumer {
  const Sm90Args& args;
  const Rings& rings;
  const int group;   // of warps
  const int thread;  // inside the group
  /// kOffsetsInScores, where tasks are done again: raw scores are multiplied by the scale first, so that offsets of any size are numbers.
  const bool exact;
  const float exponent;  // scores to powers of two

  FOVEAL_DEVICE Consumer(const Sm90Args& args, const Rings& rings, int group)
      : args(args),
        rings(rings),
        group(group),
        thread(threadIdx.x % 128),
        exact(kOffsetsInScores && rings.maxima() == Maxima::all),
        exponent(score_exponent(args, offset_scale())) {}

  FOVEAL_DEVICE bool is_exact() const { return kOffsetsInScores && __any_sync(~0u, exact); }
  /// By which offsets are divided.
  FOVEAL_DEVICE float offset_scale() const { return kOffsetsInScores && exact ? 1.0f : args.scale; }

  FOVEAL_DEVICE ForwardTask task_of(int round) const {
    ForwardTask work;
    work.at(round, args);
    return work;
  }

  FOVEAL_DEVICE int row_of(const ForwardTask& work) const { return work.first_query() + 64 * group + fragment_first_row(thread); }

  /// Row r of the thread's two in the tile, and what it stands for.
  FOVEAL_DEVICE int row_in_tile(int r) const { return 64 * group + fragment_first_row(thread) + 8 * r; }
  FOVEAL_DEVICE int query_of(const ForwardTask& work, int r) const {
    return kPackedHeads == 1 ? row_of(work) + 8 * r : work.first_query() + row_in_tile(r) / kPackedHeads;
  }
  FOVEAL_DEVICE int head_of(const ForwardTask& work, int r) const {
    return kPackedHeads == 1 ? work.task.head : work.task.head * kPackedHeads + row_in_tile(r) % kPackedHeads;
  }
  FOVEAL_DEVICE bool exists(const ForwardTask& work, int r) const {
    return query_of(work, r) < work.sequence.len_q && (kPackedHeads == 1 || row_in_tile(r) < kQueries * kPackedHeads);
  }

  /// The pair of register i; partial: it may not exist, and another stands for it.
  template <bool partial>
  FOVEAL_DEVICE Position position(const ForwardTask& work, int i) const {
    if constexpr (kFewQueries) return position_of_few<partial>(work, i);
    const int row = row_of(work), key = work.walk.tile * kBlockKv + fragment_first_column(thread);
    const int origin_q = row + static_cast<int>(args.attention.q_offset), origin_kv = key + static_cast<int>(args.attention.kv_offset);
    int q_step = 8 * fragment_row(i), kv_step = fragment_column(i);
    if constexpr (partial) {
      q_step = min(q_step, work.sequence.len_q - 1 - row);
      kv_step = min(kv_step, work.sequence.len_kv - 1 - key);
    }
    return {work.task.batch,      work.task.head, origin_q + q_step, origin_kv + kv_step,   work.sequence.len_q,
            work.sequence.len_kv, q_step,         kv_step,           partial ? 0 : kBlockKv};
  }

  /// The same where there are few queries: each row is of a query and a head of its own, and one that does not exist stands for the last query.
  template <bool partial>
  FOVEAL_DEVICE Position position_of_few(const ForwardTask& work, int i) const {
    const int r = fragment_row(i), query = min(query_of(work, r), work.sequence.len_q - 1),
              key = work.walk.tile * kBlockKv + fragment_first_column(thread);
    const int kv_step = partial ? min(fragment_column(i), work.sequence.len_kv - 1 - key) : fragment_column(i);
    return {work.task.batch,
            head_of(work, r),
            query + static_cast<int>(args.attention.q_offset),
            key + kv_step + static_cast<int>(args.attention.kv_offset),
            work.sequence.len_q,
            work.sequence.len_kv,
            0,
            kv_step};
  }

  /// What is read for each pair, before the scores are there.
  FOVEAL_DEVICE void load_ahead(AheadValues& ahead, const ForwardTask& work, bool partial, bool new_task) const {
    if constexpr (kPairReads == 0) return;
    if constexpr (any_held<kHolds, kBlockKv>()) {
      if (new_task) {
        ForwardTask first = work;
        first.walk.tile = 0;
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
          load_pair_values<false, kHolds, kBlockKv, true>(ahead, i, position<true>(first, i), args.attention.score);
      }
    }
    if (partial) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) load_pair_values<false, kHolds, kBlockKv>(ahead, i, position<true>(work, i), args.attention.score);
    } else {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) load_pair_values<false, kHolds, kBlockKv>(ahead, i, position<false>(work, i), args.attention.score);
    }
  }

  /// What is the same for all pairs of a head, or of a thread's row in a task.
  struct OfHead {
    float gain, offset_unit[kOffsets > 0 ? kOffsets : 1];  // of a sum, to powers of two; or offsets to raw scores
    float tanh_factor, tanh_times;
    float tanh_limit;  // of |raw|, for the polynomial of the exponents
    TanhPolynomial<3> exponents;
    float highest_sum;  // of guessed probabilities; 0: none are guessed
    RowValues rows[2];
    RowColumns columns;
  };
  FOVEAL_DEVICE OfHead of_head(const ForwardTask& work) const {
    OfHead head;
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
  FOVEAL_DEVICE void find_offset_units(OfHead& head, const Position& at, const ScoreArgs& score, float unit) const {
    if constexpr (o < kOffsets) {
      head.offset_unit[o] = offset_unit<o>(Score{1, offset_scale()}, at, score) * unit;
      find_offset_units<o + 1>(head, at, score, unit);
    }
  }
  /// The offsets of a score that is a sum, to powers of two, added to `onto`.
  template <int o = 0>
  FOVEAL_DEVICE float add_offsets(float onto, const OfHead& head, const Score& raw, const Pair& at) const {
    if constexpr (o < kOffsets) {
      const float offset = offset_in_units<o>(raw, at, args.attention.score);
      if constexpr (kOffsetIsScaled[o]) return add_offsets<o + 1>(onto + offset, head, raw, at);
      return add_offsets<o + 1>(fmaf(offset, unit_of_offset<o>(head, raw, at), onto), head, raw, at);
    }
    return onto;
  }
  template <int o>
  FOVEAL_DEVICE float unit_of_offset(const OfHead& head, const Score& raw, const Pair& at) const {
    if constexpr (kOffsetHasRow[o]) return head.offset_unit[o] * offset_row<o>(raw, at, args.attention.score);
    return head.offset_unit[o];
  }
  /// The same in raw scores, to begin with.
  FOVEAL_DEVICE float begin_with_offsets(const OfHead& head, const Pair& at) const {
    const Score none{0, offset_scale()};
    const float offset = offset_in_units<0>(none, at, args.attention.score);
    return add_offsets<1>(kOffsetIsScaled[0] ? offset : offset * unit_of_offset<0>(head, none, at), head, none, at);
  }
  template <int o = 0>
  FOVEAL_DEVICE void find_row_factors(float (&value)[kOffsetSlots], const OfHead& head, const ForwardTask& work, int r) const {
    if constexpr (o < kOffsets) {
      Pair at;
      static_cast<Position&>(at) = position<true>(work, 2 * r);
      value[o] = unit_of_offset<o>(head, Score{0, offset_scale()}, at);
      find_row_factors<o + 1>(value, head, work, r);
    }
  }
  /// kOffsetsAreColumns: what the product leaves out, where values are not tame. Seldom.
  FOVEAL_DEVICE void add_strange_offsets(float (&scores)[kBlockKv / 2], const OfHead& head, const ForwardTask& work, u32 use) const {
    const bool all_keys_tame = rings.lines(use).tame();
    if (__all_sync(~0u, all_keys_tame && !head.columns.strange[0] && !head.columns.strange[1])) return;
    float of_row[2][kOffsetSlots];
    for (int r = 0; r < 2; ++r) find_row_factors(of_row[r], head, work, r);
#pragma unroll
    for (int i = 0; i < kBlockKv / 2; ++i) {
      const int r = fragment_row(i), column = fragment_first_column(thread) + fragment_column(i);
      bool tame = !head.columns.strange[r];
      float offset = 0;
#pragma unroll
      for (int o = 0; o < kOffsets; ++o) {
        const float of_column = rings.lines(use).walk(kOffsetWalk[o])[column];
        tame = tame && is_tame(of_column);
        offset = fmaf(of_column, of_row[r][o], offset);
      }
      scores[i] += tame ? 0.0f : offset;
      if (i % 4 == 3) asm volatile("" ::: "memory");  // loads stay where they are: registers are short
    }
  }
  /// Of |raw|, for exponents that need no maximum.
  FOVEAL_DEVICE float bounded_limit(float factor, float times) const {
    return kHighestExponent * reciprocal_approx(fabsf(factor * (times * exponent)));
  }

  /// What stands in the registers of a tile's scores.
  enum class Stage { products, scores, probabilities };

  /// Scores as the softmax wants them, for `exponent`: score_mod applied, -inf where the pair is not kept. `kept`: where bits of columns that some
  /// row keeps go, if anywhere. Stage::probabilities: the softmax is done, and `rescales` says what OnlineSoftmax::follow_maximum returns.
  template <bool partial>
  FOVEAL_DEVICE Stage transform(float (&scores)[kBlockKv / 2], OnlineSoftmax& softmax, bool& rescales, float (&rescale)[2],
                                const OfHead& head, const AheadValues& ahead, const ForwardTask& work, u32 use, u32 kept) const {
    const auto with = [&](const auto& tanh_ahead) {
      transform<partial, Stage::scores>(scores, softmax, tanh_ahead, head, ahead, work, use, kept);
    };
    const float factor = head.tanh_factor, times = head.tanh_times;
    const float most = kTanhAhead ? largest(scores) : 0.0f;
    if constexpr (kBounded) {
      const auto update = [&]<int terms>(const TanhPolynomial<terms>& polynomial) {
        ExponentAhead<terms> exponent_ahead{polynomial};
        bounded_shift(softmax, exponent, exponent_ahead.shift);
        with(exponent_ahead);
        rescales = update_bounded<partial>(softmax, scores, exponent, rescale);
        return Stage::probabilities;
      };
      if (!kGuesses && !partial && all_small(most, head.tanh_limit)) return update(head.exponents);
      if (all_small(most, fminf(TanhPolynomial<4>::limit(factor), bounded_limit(factor, times)))) {
        return update(TanhPolynomial<4>(factor, times * exponent));
      }
    }
    if (kTanhAhead && all_small(most, TanhPolynomial<5>::limit(factor))) {
      with(TanhPolynomial<5>(factor, times));
    } else {
      with(AnyTanhAhead{factor, times});
    }
    return Stage::scores;
  }
  /// kOffsetsFirst: what the product q . k of a tile is added to. A pair then costs no more behind the product than without a score, where it would hold up the
  /// exponentials, and loads from tables wait for nothing but each other.
  /// late: it is there already.
  template <bool partial, bool late = false>
  FOVEAL_DEVICE void begin_scores(float (&scores)[kBlockKv / 2], const OfHead& head, const ForwardTask& work, u32 use) const {
    if constexpr (kHasLines) rings.line_values.wait_full(use);
    if constexpr (kPairTiles > 0) rings.pairs.ring.wait_full(use);
    const LineView<kBlockKv> lines(rings.lines(use), 64 * group + fragment_first_row(thread), fragment_first_column(thread));
    const TiledView<false, kBlockQ, kBlockKv> tiles(rings.pairs, use, 64 * group + 16 * (thread / kWarp), {}, args.attention.score);
    TiledValues tiled;
#pragma unroll
    for (int i = 0; i < kBlockKv / 2; ++i) {
      Pair at = lines.pair(i, position<partial>(work, i));
      head.rows[fragment_row(i)].put_into(at);
      if (i % 8 == 0) tiled = tiles.load(i / 8);
      tiled.put_into(at, i);
      rings.tables().put_into(at);
      const float begin = begin_with_offsets(head, at);
      scores[i] = late ? scores[i] + begin : begin;
      if (late && i % 4 == 3) asm volatile("" ::: "memory");  // loads stay where they are: registers are short
    }
    if constexpr (kPairTiles > 0) release_loaded(rings.pairs.ring, use);
    if constexpr (kHasLines) release(rings.line_values, use);
  }
  FOVEAL_DEVICE static void clear(float (&scores)[kBlockKv / 2]) {
#pragma unroll
    for (float& score : scores) score = 0;
  }
  /// Products q . k as they are become scores, to which offsets may still come.
  FOVEAL_DEVICE void make_exact(float (&scores)[kBlockKv / 2], const OfHead& head, const ForwardTask& work, u32 use) const {
#pragma unroll
    for (float& score : scores) score *= args.scale;
    if constexpr (kOffsetsFirst) begin_scores<true, true>(scores, head, work, use);
  }
  template <bool partial, Stage to, class TanhAhead>
  FOVEAL_DEVICE void transform(float (&scores)[kBlockKv / 2], OnlineSoftmax& softmax, const TanhAhead& tanh_ahead, const OfHead& head,
                               const AheadValues& ahead, const ForwardTask& work, u32 use, u32 kept) const {
    const AttentionArgs& attention = args.attention;
    const float scale = args.scale;
    const int first_kv = work.walk.tile * kBlockKv + fragment_first_column(thread);
    const int last_kv = work.sequence.len_kv - 1;
    const LineView<kBlockKv> lines(rings.lines(use), 64 * group + fragment_first_row(thread), fragment_first_column(thread));
    const TiledView<false, kBlockQ, kBlockKv> tiles(rings.pairs, use, 64 * group + 16 * (thread / kWarp), {}, args.attention.score);
    TiledValues tiled;
    int low[2], high[2];
    u32 kept_columns[kKeptWords] = {};
    float tanh[kTanhAtOnce];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      high[r] = last_kv - first_kv;
      if constexpr (Walk::kLimitHigh) high[r] = min(high[r], query_of(work, r) + args.band_high - first_kv);
      if constexpr (Walk::kLimitLow) low[r] = query_of(work, r) + args.band_low - first_kv;
    }
#pragma unroll
    for (int i = 0; i < kBlockKv / 2; ++i) {
      const int column = fragment_column(i), r = fragment_row(i);
      Pair at = lines.pair(i, position<partial>(work, i));
      if constexpr (kScoresToMake) {
        put_pair_values<false, kHolds, kBlockKv>(at, ahead, i);
        if (i % 8 == 0) tiled = tiles.load(i / 8);
        tiled.put_into(at, i);
        rings.tables().put_into(at);
      }
      if (kTanhAhead && i % kTanhAtOnce == 0) tanh_ahead.evaluate(tanh, scores, i);
      at.tanh = tanh[i % kTanhAtOnce];
      const Score raw{scores[i], scale};
      if constexpr (to == Stage::probabilities) {
        const float offset = add_offsets(-softmax.reference[r] * exponent, head, raw, at);
        scores[i] = exp2_real(fmaf(raw.raw, head.gain, offset));
        softmax.sum[r] += scores[i];
      } else {
        scores[i] = kOffsetsInScores && kScoresToMake ? add_offsets(raw.raw, head, raw, at) : score_in_units(raw, at, attention.score);
      }
      if constexpr (partial) {
        bool keep = column <= high[r];
        if constexpr (Walk::kLimitLow) keep = keep && column >= low[r];
        if constexpr (kMaskProgram) {
          keep = mask_keep(at, attention.score) & keep;
          constexpr int kBits = 32;
          const int bit = 2 * (i / 4) + i % 2;
          if (keep && exists(work, r)) kept_columns[bit / kBits] |= 1u << bit % kBits;
        }
        scores[i] = keep ? scores[i] : -infinity();
      }
    }
    if constexpr (kPairTiles > 0 && kScoresToMake) release_loaded(rings.pairs.ring, use);
    if (partial && kMaskProgram && kept != 0) {
#pragma unroll
      for (int word = 0; word < kKeptWords; ++word) {
        u32 columns = kept_columns[word];
#pragma unroll
        for (int lane = kWarp / 2; lane >= 4; lane /= 2) columns |= __shfl_xor_sync(~0u, columns, lane);
        if (thread % kWarp < 4) or_shared(kept + 4 * (4 * word + thread % 4), columns);
      }
    }
  }

  /// Do the maxima of the rows last, for the tile to come?
  FOVEAL_DEVICE bool lasts(const OnlineSoftmax& softmax) const {
    return softmax.lasts<kHasScore>(exponent, rings.maxima() == Maxima::first);
  }

  /// OnlineSoftmax::follow_maximum, after which a sum that was too high is seen at the end all the same.
  FOVEAL_DEVICE bool follow_maximum(OnlineSoftmax& softmax, const float (&scores)[kBlockKv / 2], float (&rescale)[2]) const {
    if constexpr (kAnyExponent) softmax.keep_overflow();
    return softmax.follow_maximum(scores, exponent, rescale);
  }

  /// Does some row keep this column of the tile?
  FOVEAL_DEVICE static bool is_kept(u32 kept, int column) {
    const int bit = 2 * (column / 8) + column % 2;
    return load_word(kept + 4 * (bit / 32 * 4 + column % 8 / 2)) >> bit % 32 & 1;
  }

  /// Clears the values of a partial tile that no row keeps: what stands there may be NaN, and 0 * NaN would spread it. All groups take part when
  /// the mask program decides; else only the end of the sequence does, and each group clears for itself.
  FOVEAL_DEVICE void clear_values(const ForwardTask& work, KvTile values, u32 kept) const {
    constexpr int kPieces = kShared.value_bytes / 16 / kBlockKv;  // of one row
    if constexpr (kMaskProgram) named_barrier_sync(kKeptBarrier, 128 * kConsumers);
    const int exist = work.sequence.len_kv - work.walk.tile * kBlockKv;
    for (int i = thread; i < kBlockKv * kPieces; i += 128) {
      const int row = i % kBlockKv;
      const bool clear = kMaskProgram ? !is_kept(kept, row) : row >= exist;
      if (clear) store_zeros(values.address + i / kBlockKv / 8 * KvTile::kChunkBytes + row * kChunkRowBytes + i / kBlockKv % 8 * 16);
    }
    fence_async_proxy();
    if constexpr (kMaskProgram) {
      named_barrier_sync(kKeptBarrier, 128 * kConsumers);
    } else {
      named_barrier_sync(kGroupBarrier + group, 128);
    }
  }

  /// Drops probabilities; what stays is scaled at the end.
  FOVEAL_DEVICE void drop(float (&p)[kBlockKv / 2], const ForwardTask& work) const {
    const DropoutRow dropout(args.attention.dropout, dropout_row(args.attention, work.task.batch, work.task.head));
    const u32 kv = static_cast<u32>(args.attention.kv_offset) + work.walk.tile * kBlockKv + fragment_first_column(thread);
    const u32 q = static_cast<u32>(args.attention.q_offset) + row_of(work);
#pragma unroll
    for (int begin = 0; begin < kBlockKv / 2; begin += 16) {
      u32 kept = 0;  // one bit for each register; a rolled loop, for ten rounds of Philox are long
#pragma unroll 1
      for (int i = 0; i < 16; i += 2) {
        bool first, second;
        dropout.keep_two(q + 8 * fragment_row(begin + i), kv + fragment_column(begin + i), first, second);
        kept |= (first ? 1u : 0u) << i | (second ? 2u : 0u) << i;
      }
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (begin + i < kBlockKv / 2 && !(kept >> i & 1)) p[begin + i] = 0;
      }
    }
  }

  /// Where row r of a part of the keys goes.
  FOVEAL_DEVICE i64 split_row(const ForwardTask& work, int r) const {
    const int first = kVarlen ? work.sequence.first_q : work.task.batch * args.attention.seqlen_q;
    return work.split * args.split_rows + static_cast<i64>(first + query_of(work, r)) * args.attention.heads_q + head_of(work, r);
  }

  FOVEAL_DEVICE void write_split(const ForwardTask& work, const OnlineSoftmax& softmax) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(softmax.sum[r]);
      if (thread % 4 == 0 && exists(work, r)) args.split_softmax[split_row(work, r)] = {softmax.reference[r], sum};
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

  /// What is left of a task whose last product is under way: where its output goes, and the factor of each row.
  struct Ending {
    u16* out;     // first row of this thread
    u16* second;  // with packed heads
    float* split_out[2];
    int rows;  // that exist from there on; with packed heads or parts of keys a bit for each of the two
    float factor[2];
    float of_before[2];  // a part: of what is there
  };

  /// A part's statistics join those of the rows, and say what its output weighs. Rows whose sums overflowed wait for their task to be done again.
  FOVEAL_DEVICE Ending end_part(const ForwardTask& work, OnlineSoftmax& softmax) const {
    static_assert(!kPart || (kRowsFollow && !kHasSink));
    const bool wrong = kAnyExponent && rings.maxima() != Maxima::all && __any_sync(~0u, softmax.overflows());
    Ending ending;
    double lse[2];
    softmax.finish(exponent, ending.factor, lse);
    const PartArgs& part = args.attention.part;
    const Rows& to = args.attention.lse;
    double* first = static_cast<double*>(to.data) + work.task.batch * to.batch + work.task.head * to.head;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const i64 at = static_cast<i64>(query_of(work, r)) * to.seq;
      const bool has_row = exists(work, r) && !wrong;
      const double before = has_row && part.adds_to_q ? first[at] : -static_cast<double>(infinity());
      const PartWeights<float> weights = join_part<float>(lse[r], before, part);
      ending.factor[r] *= weights.of_part;
      ending.of_before[r] = weights.of_before;
      __syncwarp();
      if (has_row && thread % 4 == 0) first[at] = lse[r];
      if constexpr (kDropout) ending.factor[r] *= args.attention.dropout.keep_scale;
    }
    const Tensor& out = args.attention.out;
    ending.split_out[0] = static_cast<float*>(out.data) + work.task.batch * out.batch + work.task.head * out.head +
                          static_cast<i64>(query_of(work, 0)) * out.seq;
    ending.rows = wrong ? 0 : work.sequence.len_q - row_of(work);
    return ending;
  }

  /// Writes the statistics of a task.
  FOVEAL_DEVICE Ending end(const ForwardTask& work, OnlineSoftmax& softmax) const {
    if constexpr (kPart) return end_part(work, softmax);
    Ending ending;
    float lse[2];
    if constexpr (kHasSink && !kSplit) {  // else once, where the parts are merged
      softmax.finish(exponent, {sink_logit(head_of(work, 0), args.attention.score), sink_logit(head_of(work, 1), args.attention.score)},
                     ending.factor, lse);
    } else {
      softmax.finish(exponent, ending.factor, lse);
    }
    if constexpr (kSplit) {
      write_split(work, softmax);
    } else {
      write_lse(work, lse);
    }
    if constexpr (kDropout) {
      ending.factor[0] *= args.attention.dropout.keep_scale;
      ending.factor[1] *= args.attention.dropout.keep_scale;
    }
    const Tensor& out = args.attention.out;
    const auto place = [&](int r) {
      return static_cast<u16*>(out.data) + work.task.batch * out.batch + head_of(work, r) * out.head +
             (work.sequence.first_q + query_of(work, r)) * out.seq;
    };
    ending.rows = kRowsFollow ? work.sequence.len_q - row_of(work) : (exists(work, 0) ? 1 : 0) + (exists(work, 1) ? 2 : 0);
    if constexpr (kSplit) {
      for (int r = 0; r < 2; ++r) ending.split_out[r] = args.split_out + split_row(work, r) * kHeadDimV;
      return ending;
    }
    ending.out = place(0);
    if constexpr (kPackedHeads > 1) ending.second = place(1);
    return ending;
  }

  /// Has the task to be done again? kOffsetsInScores: also where a row has no number as a score. Where it has one, those that are too low for raw scores are -inf, which is
  /// what is left of their probabilities.
  FOVEAL_DEVICE static bool fails(const OnlineSoftmax& softmax) {
    const bool empty = softmax.reference[0] == -infinity() || softmax.reference[1] == -infinity();
    return softmax.overflows() || (kOffsetsInScores && empty);
  }

  FOVEAL_DEVICE Ending end(int round, OnlineSoftmax& softmax) const {
    if (kAnyExponent && fails(softmax) && rings.maxima() != Maxima::all) rings.do_again(round);
    return end(task_of(round), softmax);
  }

  FOVEAL_DEVICE void write_out(const Ending& ending, const float (&acc)[kDimV / 2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool exists = kRowsFollow ? ending.rows > 8 * r : ending.rows >> r & 1;
      if constexpr (kPart) {
        const bool changes = exists && (ending.factor[r] != 0 || ending.of_before[r] != 1);
        add_row(ending.split_out[0] + 8 * r * args.attention.out.seq, acc, r, ending.factor[r], ending.of_before[r],
                changes ? kHeadDimV : 0, thread % 32);
        continue;
      }
      if constexpr (kSplit) {
        store_row(ending.split_out[r], acc, r, ending.factor[r], exists ? kHeadDimV : 0, thread % 32);
        continue;
      }
      u16* to = kPackedHeads > 1 && r == 1 ? ending.second : ending.out + 8 * r * args.attention.out.seq;
      store_row<Element>(to, acc, r, ending.factor[r], exists ? kHeadDimV : 0, thread % 32);
    }
  }

  FOVEAL_DEVICE void write_empty(const ForwardTask& work) const {
    OnlineSoftmax nothing;
    nothing.reset();
    const float zeros[kDimV / 2] = {};
    write_out(end(work, nothing), zeros);
  }

  /// The next kv tile of this task, or the first one of the next task; tasks without tiles are written here.
  FOVEAL_DEVICE bool advance(ForwardTask& work, int& round, bool& partial, bool& new_task) const {
    new_task = false;
    while (!work.next_tile(args, partial)) {
      if (new_task) write_empty(work);
      if (!work.next(round, args, rings)) return false;
      new_task = true;
    }
    return true;
  }

  /// Before the first run: group 0 begins. A run leaves the turns as it found them.
  FOVEAL_DEVICE void open_turns() const {
    if (kTakeTurns && group == kConsumers - 1) named_barrier_arrive(kTurnBarrier, 256);
  }

  /// Long: the phases of a step are lambdas over the accumulators and the state of one loop, which stay in registers.
  FOVEAL_DEVICE void run() const {
    const bool leader = kEveryLaneArrives || thread == 0;
    int round, next_round = -1;  // of the task whose output is accumulated, none before the first; of the one whose scores are computed
    ForwardTask next;            // the latter
    next.walk.stop();
    u32 tile = 0, query = 0;
    bool partial, new_task;

    float scores[kBlockKv / 2];
    float acc[kDimV / 2];
    u32 p[kBlockKv / 4] = {};
    float rescale[2];
    bool rescales, lasted = false;
    bool guesses, guessing = false;  // those of this task so far were right; this tile's
    Stage stage;
    AheadValues ahead;
    OfHead head;
    OnlineSoftmax softmax;

    const auto score_product = [&] {
      wgmma_pin(scores);
      wgmma_fence();
      if constexpr (kOffsetsAreColumns) rings.key_columns(tile).multiply(scores, head.columns);
      multiply_rows<Element, kBlockKv, kDim>(scores, uniform(rings.query_tile(query)), 64 * group, uniform(rings.key_tile(tile)), 0,
                                             kOffsetsFirst || kOffsetsAreColumns);
      wgmma_commit();
    };
    const auto value_product = [&](u32 use, bool accumulate) {
      wgmma_pin(acc);
      wgmma_fence();
      multiply_registers<Element, kDimV, kBlockKv>(acc, p, uniform(rings.value_tile(use)), accumulate);
      wgmma_commit();
    };
    TableFilling filling(offset_scale());
    const auto follow_tables = [&] {
      const Position base{next.task.batch, next.task.head, 0, 0, next.sequence.len_q, next.sequence.len_kv};
      filling.follow(rings.tables(), base, args.attention.score, threadIdx.x - 128, 128 * kConsumers, kTableBarrier);
    };
    const auto take_scores = [&](auto inside, bool partial) {
      if (leader) rings.key.release(tile);
      if (kGivesQueriesEarly && leader && next.walk.is_last()) rings.query.release(query);
      wgmma_pin(scores);
      if constexpr (kOffsetsInScores && !decltype(inside)::value) {
        if (is_exact()) make_exact(scores, head, next, tile);
      }
      if constexpr (kHasLines && kScoresToMake) rings.line_values.wait_full(tile);
      if constexpr (kPairTiles > 0 && kScoresToMake) rings.pairs.ring.wait_full(tile);
      if constexpr (kOffsetsAreColumns) {
        add_strange_offsets(scores, head, next, tile);
        release(rings.line_values, tile);
      }
      stage = Stage::scores;
      rescales = false;
      if (partial) {
        const bool clears = (kMaskProgram && !next.walk.covered) || (kRaggedKv && (next.walk.tile + 1) * kBlockKv > next.sequence.len_kv);
        const u32 kept = clears ? rings.base + kShared.kept : 0;
        if (kMaskProgram && clears) {
          if (threadIdx.x - 128 < 4 * kKeptWords) store_word(kept + 4 * (threadIdx.x - 128), 0);
          named_barrier_sync(kKeptBarrier, 128 * kConsumers);
        }
        stage = transform<true>(scores, softmax, rescales, rescale, head, ahead, next, tile, kept);
        if (clears) {
          rings.value.wait_full(tile);
          clear_values(next, rings.value_tile(tile), kept);
        }
      } else if (kGuesses || (kSumScore && kAnyExponent && lasts(softmax))) {
        stage = Stage::products;
      } else if constexpr (kScoresToMake) {
        stage = transform<false>(scores, softmax, rescales, rescale, head, ahead, next, tile, 0);
      }
      if (stage == Stage::scores && !(kLooksAhead ? lasted : lasts(softmax))) rescales = follow_maximum(softmax, scores, rescale);
    };
    const auto rescale_out = [&] {
#pragma unroll
      for (int i = 0; i < kDimV / 2; ++i) acc[i] *= rescale[fragment_row(i)];
    };
    const auto take_exponentials = [&] {
      if (stage == Stage::scores) softmax.add(scores, exponent, !kLooksAhead || !lasted);
      if constexpr (kSumScore && kAnyExponent) {
        if (stage == Stage::products) transform<false, Stage::probabilities>(scores, softmax, AnyTanhAhead{}, head, ahead, next, tile, 0);
      }
      if constexpr (kHasLines && kScoresToMake) release(rings.line_values, tile);
      if constexpr (kDropout) drop(scores, next);
    };
    const auto take_probabilities = [&] {
      if (kGuesses && stage == Stage::products) {
        if (guessing) {
          guesses = guess_probabilities<Element>(p, softmax, scores, head.exponents, head.highest_sum);
          if (guesses) return;
        }
        stage = transform<false>(scores, softmax, rescales, rescale, head, ahead, next, tile, 0);
        if (stage == Stage::scores) rescales = follow_maximum(softmax, scores, rescale);
        if (rescales) rescale_out();
      }
      take_exponentials();
      pack_fragment<Element>(p, scores);
    };

    bool accumulate = false;
    // The scores of a tile beside the values of the tile before. inside: the tile is full, and of the same task as that one. What remains then is short:
    // rare paths are kept out of line, to avoid misses of the instruction cache. Otherwise queries may have to come first, for which values do not
    // wait, and while they do the output is written. Before the first tile there is none: its product is of what happens to lie there and counts for nothing,
    // which costs less than a text of the first step to compile.
    const auto step = [&](auto inside) {
      constexpr bool kInside = decltype(inside)::value;
      constexpr bool kValuesFirst = !kInside && !kQueriesAhead;
      const bool started = kInside || round >= 0;
      Ending ending;
      const auto start_values = [&](u32 use) {
        if (started) rings.value.wait_full(use);
        value_product(use, accumulate);
      };
      const auto end_values = [&] {
        wgmma_pin(acc);
        if (leader && started) rings.value.release(tile - 1);
        accumulate = kInside || !new_task;
        if (!kInside && new_task) {
          write_out(ending, acc);
        } else if (!kValuesFirst && rescales) {
          rescale_out();
        }
      };
      if constexpr (kValuesFirst) start_values(tile);
      if (!kInside && new_task) {
        ending.rows = 0;
        if (started) {
          ending = end(round, softmax);
          if (!kGivesQueriesEarly && leader) rings.query.release(query);
          ++query;
          ++tile;
        }
        softmax.reset();
        head = of_head(next);
        guesses = head.highest_sum > 0;
        rings.query.wait_full(query);
      } else {
        ++tile;
      }
      if constexpr (kOffsetsFirst) {
        if (!kInside && new_task) follow_tables();
        if (!kInside && is_exact()) {
          clear(scores);
        } else if (kInside) {
          begin_scores<false>(scores, head, next, tile);
        } else if (kSource != TileSource::list || partial) {
          begin_scores<true>(scores, head, next, tile);
        } else {
          begin_scores<false>(scores, head, next, tile);
        }
      }
      if constexpr (kOffsetsAreColumns) rings.line_values.wait_full(tile);
      rings.key.wait_full(tile);
      if constexpr (kTakeTurns) named_barrier_sync(kTurnBarrier + group, 256);
      score_product();
      if constexpr (!kValuesFirst) start_values(tile - 1);
      if constexpr (kTakeTurns) named_barrier_arrive(kTurnBarrier + (group + 1) % kConsumers, 256);
      if (!kOffsetsFirst && !kInside && new_task) follow_tables();
      load_ahead(ahead, next, !kInside && partial, !kInside && new_task);
      if constexpr (kLooksAhead) lasted = lasts(softmax);
      if constexpr (kGuesses) guessing = guesses && softmax.is_unshifted();
      wgmma_wait<1>();
      if constexpr (kValuesFirst) {
        end_values();
        wgmma_wait<0>();
      }
      take_scores(inside, !kInside && (kPartialOutside || partial));
      if constexpr (kOrdered) {
        take_exponentials();
        softmax.complete();
      }
      if constexpr (!kValuesFirst) {
        wgmma_wait<0>();
        end_values();
      }
      if (kValuesFirst && !new_task && rescales) rescale_out();
      if constexpr (kOrdered) {
        pack_fragment<Element>(p, scores);  // not before the conditions: where these end a step, the compiler thinks that lanes part
      } else {
        take_probabilities();
      }
    };

    for (;;) {
      round = next_round;
      if (!advance(next, next_round, partial, new_task)) break;
      step(Constant<false>{});
      if constexpr (kOffsetsInScores) {
        if (is_exact()) continue;
      }
      if constexpr (kSource != TileSource::list) {  // whose tiles are too seldom full
        while (next.next_full_tile()) step(Constant<true>{});
      }
    }
    if (round < 0) return;
    rings.value.wait_full(tile);
    value_product(tile, accumulate);
    wgmma_wait<0>();
    wgmma_pin(acc);
    write_out(end(round, softmax), acc);
  }
};

FOVEAL_DEVICE void init_barriers(const Rings& rings) {
  rings.query.init(1, arrivals_of_groups(kConsumers));
  rings.key.init(1, arrivals_of_groups(kConsumers));
  rings.value.init(1, arrivals_of_groups(kConsumers));
  if constexpr (kHasLines) rings.line_values.init(arrivals_of_warps(1), arrivals_of_warps(4 * kConsumers));
  if constexpr (kPairTiles > 0) rings.pairs.ring.init(1, arrivals_of_warps(4 * kConsumers));
  fence_mbarrier_init();
}

/// By all threads, when everything is done: has some of it to be done again? Seldom: a score exceeded the maximum that its row knew by a factor of 2^43 at least, or
/// Consumer::fails.
FOVEAL_DEVICE bool repeats(const Rings& rings) {
  if constexpr (!kAnyExponent) return false;
  named_barrier_sync(kEndBarrier, kThreads);
  if (rings.maxima() != Maxima::too_low) return false;
  named_barrier_sync(kEndBarrier, kThreads);
  if (threadIdx.x == 0) {
    for (u32 barrier = rings.query.address; barrier < rings.base + kShared.maxima; barrier += 8) mbarrier_invalidate(barrier);
    init_barriers(rings);
    rings.set_maxima(Maxima::all);
  }
  named_barrier_sync(kEndBarrier, kThreads);
  return true;
}

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 1)
    forward_sm90(const __grid_constant__ foveal::device::ForwardArgs args) {
  using namespace foveal::device;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Rings rings(shared);
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    init_barriers(rings);
    rings.set_maxima(kAnyExponent ? Maxima::first : Maxima::all);
    for (int word = 0; word < ForwardLayout::kAgainWords; ++word) store_word(rings.base + kShared.again + 4 * word, 0);
  }
  if (kSplit && blockIdx.x == 0 && threadIdx.x == 0) *args.split_exponent = score_exponent(args, args.scale);
  if constexpr (kQueries * kPackedHeads < kBlockQ) {
    for (int i = threadIdx.x; i < kQueryStages * kShared.query_bytes / 16; i += kThreads) store_zeros(rings.query_tile(0).address + 16 * i);
    fence_async_proxy();
  }
  __syncthreads();
  if (warp_group == 0) {
    registers_decrease<kProducerRegisters>();
    do {
      if (loads()) produce(args, rings);
      if constexpr (kHasLines) {
        if (warp_id() == 1) evaluate_lines(args, rings);
      }
      __syncwarp();
    } while (repeats(rings));
  } else {
    registers_increase<kConsumerRegisters>();
    const Consumer consumer(args, rings, warp_group - 1);
    consumer.open_turns();
    if constexpr (kOffsetsInScores) {
      do {
        Consumer(args, rings, warp_group - 1).run();
      } while (repeats(rings));
    } else {
      do {
        consumer.run();
      } while (repeats(rings));
    }
  }
}
