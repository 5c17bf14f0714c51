#pragma once
// Offsets of a score of the form raw * gain + offsets, where they are not added behind the product: accumulators are initialised with them
// (kOffsetsFirst), or the tensor cores add them (kOffsetsAreColumns). Also prefetches of pair reads while products are in flight.
#include "tile/forward_scores.cuh"
#include "tile/head_rows.cuh"

namespace foveal::device {

static_assert(!kOffsetsInScores || (kWideRange && !kProblem.part), "tasks are done redo, each in units of its own");

struct TileOffsets : TileScores<HeadRows> {
  using TileScores::TileScores;

  /// Issues the loads of pair reads before the scores arrive.
  FOVEAL_DEVICE void prefetch_pairs(PairPrefetch& prefetched, const ForwardTask& work, bool partial, bool new_task) const {
    if constexpr (kPairReads == 0) return;
    if constexpr (any_held<true, kBlockKv>()) {
      if (new_task) {
        ForwardTask first = work;
        first.walk.tile = 0;
#pragma unroll
        for (int i = 0; i < kPrefetched; ++i)
          load_pair_values<false, true, kBlockKv, true>(prefetched, i, position<true>(first, i), args.attention.score);
      }
    }
    if (partial) {
#pragma unroll
      for (int i = 0; i < kPrefetched; ++i)
        load_pair_values<false, true, kBlockKv>(prefetched, i, position<true>(work, i), args.attention.score);
    } else {
#pragma unroll
      for (int i = 0; i < kPrefetched; ++i)
        load_pair_values<false, true, kBlockKv>(prefetched, i, position<false>(work, i), args.attention.score);
    }
  }

  /// Offsets in units of raw scores, to initialise an accumulator.
  FOVEAL_DEVICE float begin_with_offsets(const HeadConstants& head, const Pair& at) const {
    const Score none{0, offset_scale()};
    const float offset = offset_in_units<0>(none, at, args.attention.score);
    return add_offsets<1>(kOffset[0].is_scaled ? offset : offset * unit_of_offset<0>(head, none, at), head, none, at);
  }
  /// kOffsetsAreColumns: adds the offsets of rows and keys whose values are too large for the columns. Rare.
  FOVEAL_DEVICE void add_large_offsets(float (&scores)[kBlockKv / 2], const HeadConstants& head, const ForwardTask& work, u32 use) const {
    const bool all_keys_tame = pipelines.lines(use).tame();
    if (__all_sync(~0u, all_keys_tame && !head.columns.large[0] && !head.columns.large[1])) return;
    float of_row[2][kOffsetSlots];
    for (int r = 0; r < 2; ++r) find_row_factors(of_row[r], head, work, r);
    const auto add = [&]<int part>(float(&some)[part], int begin) {
#pragma unroll
      for (int i = 0; i < part; ++i) {
        const int r = fragment_row(i), column = fragment_first_column(thread) + 2 * begin + fragment_column(i);
        bool tame = !head.columns.large[r];
        float offset = 0;
#pragma unroll
        for (int o = 0; o < kOffsets; ++o) {
          const float of_column = pipelines.lines(use).walk(kOffset[o].walk)[column];
          tame = tame && is_tame(of_column);
          offset = fmaf(of_column, of_row[r][o], offset);
        }
        some[i] += tame ? 0.0f : offset;
        if (i % 4 == 3) asm volatile("" ::: "memory");  // loads stay where they are: registers are short
      }
    };
    if constexpr (kDimV <= 128) {
      in_parts(scores, add);
    } else {  // some registers would spill
      add(scores, 0);
    }
  }
  /// kOffsetsFirst: initial value of the accumulator of q . k. A pair then costs nothing behind the product, where it would delay the
  /// exponentials, and table loads are independent of each other.
  /// late: the product is already there.
  template <bool partial, bool late = false>
  FOVEAL_DEVICE void begin_scores(float (&scores)[kBlockKv / 2], const HeadConstants& head, const ForwardTask& work, u32 use) const {
    if constexpr (kHasLines) pipelines.line_values.consumer_wait(use);
    if constexpr (kPairTiles > 0) pipelines.pairs.pipeline.consumer_wait(use);
    const LineView<kBlockKv> lines = lines_of(use);
    const TiledView<false, Pairs> tiles = pairs_of(use);
    TiledValues tiled;
#pragma unroll
    for (int i = 0; i < kBlockKv / 2; ++i) {
      Pair at = lines.pair(i, position<partial>(work, i));
      head.rows[fragment_row(i)].put_into(at);
      if (i % 8 == 0) tiled = tiles.load(i / 8);
      tiled.put_into(at, i);
      pipelines.tables().put_into(at);
      const float begin = begin_with_offsets(head, at);
      scores[i] = late ? scores[i] + begin : begin;
      if (late && i % 4 == 3) asm volatile("" ::: "memory");  // loads stay where they are: registers are short
    }
    if constexpr (kPairTiles > 0) consumer_release_loaded(pipelines.pairs.pipeline, use);
    if constexpr (kHasLines) consumer_release(pipelines.line_values, use);
  }
  /// exact: offsets are added later.
  FOVEAL_DEVICE void begin_products(float (&scores)[kBlockKv / 2], const HeadConstants& head, const ForwardTask& work, u32 use,
                                    bool partial, bool exact) const {
    if (exact) {
#pragma unroll
      for (float& score : scores) score = 0;
    } else if (partial) {
      begin_scores<true>(scores, head, work, use);
    } else {
      begin_scores<false>(scores, head, work, use);
    }
  }
  /// Adds what the products lack. exact: products are scaled first, then offsets are added.
  FOVEAL_DEVICE void complete_products(float (&scores)[kBlockKv / 2], const HeadConstants& head, const ForwardTask& work, u32 use,
                                       bool exact) const {
    if (exact) {
#pragma unroll
      for (float& score : scores) score *= args.scale;
      if constexpr (kOffsetsFirst) begin_scores<true, true>(scores, head, work, use);
    }
    if constexpr (kOffsetsAreColumns) {
      add_large_offsets(scores, head, work, use);
      consumer_release(pipelines.line_values, use);
    }
  }

  /// Loads the tables of a task's head.
  FOVEAL_DEVICE void update_tables(const ForwardTask& work, TableLoader& tables) const {
    const Position base{work.task.batch, work.task.head, 0, 0, work.sequence.len_q, work.sequence.len_kv};
    tables.update(pipelines.tables(), base, args.attention.score, threadIdx.x - 128, 128 * kConfig.consumers, kTableBarrier);
  }
};

}  // namespace foveal::device
