#pragma once
// Backward: S^T = K Q^T, and what a warpgroup keeps or prefetches for its scores.
#include "tile/backward_sm90.cuh"

namespace foveal::device {

/// Are there registers to spare beside the accumulators?
constexpr bool kSpareRegisters = kBlockQ == 64 && kDim + kDimV <= 160;
/// Is there a register for the thread index? Otherwise it is read again in every tile.
constexpr bool kThreadInRegister = kBlockQ == 64;

/// lse of the thread's queries, if prefetched: shared-memory loads issued behind wgmma wait for it where operands take the whole
/// shared-memory bandwidth.
struct LsePrefetch {
  float value[kFamily.prefetches_lse ? kBlockQ / 4 : 1];
};

/// partial: some pair is dropped or out of bounds; far: some rows are far (and pairs may be dropped as well).
enum class TileKind { full, partial, far };

/// Products of a warpgroup's 64 keys.
struct BackwardScores {
  const Sm90Args& args;
  const Pipelines& pipelines;
  const int first_key;  // first key within the tile
  const int thread;
  const float exponent;  // for scores without a score_mod

  FOVEAL_DEVICE BackwardScores(const Sm90Args& args, const Pipelines& pipelines, int first_key)
      : args(args),
        pipelines(pipelines),
        first_key(first_key),
        thread(kThreadInRegister ? keep_in_register(threadIdx.x % 128) : threadIdx.x % 128),
        exponent(args.scale * kLog2e) {}

  /// Position of the thread's first key in the sequence.
  FOVEAL_DEVICE int key_of(const BackwardTask& work) const { return work.first_kv() + first_key + fragment_first_row(thread); }

  /// The warp's position in a tile, from this many queries further on; `use` of the pipelines.
  FOVEAL_DEVICE WarpPairs warp_pairs(const BackwardTask& work, u32 use, const PairPrefetch& prefetched, int queries = 0) const {
    const int row = fragment_first_row(thread), column = fragment_first_column(thread) + queries;
    return {
        args.attention, work.base(args.attention), work.first_q() + column, key_of(work), {pipelines.lines(use), first_key + row, column},
        prefetched,     pipelines.tables()};
  }

  /// Values that are constant for a query head, computed once a task.
  struct HeadConstants {
    int head;
    float exponent;           // scores in units, to powers of two
    float gain, offset_unit;  // of a sum of raw score and offset, to powers of two
    float tanh_factor;
  };
  FOVEAL_DEVICE HeadConstants head_constants(const BackwardTask& work) const {
    const Score one{1, args.scale};
    const Position at = work.base(args.attention);
    const ScoreArgs& score = args.attention.score;
    if constexpr (!kHasScore) return {at.head, exponent, 0, 0, 0};
    return {at.head, score_unit(one, at, score) * kLog2e, score_gain(one, at, score) * kLog2e, offset_unit<0>(one, at, score) * kLog2e,
            tanh_factor(one, at, score)};
  }
  /// After the walk has moved on within a task.
  FOVEAL_DEVICE void update_head_constants(HeadConstants& constants, const BackwardTask& work) const {
    if (kHasScore && work.head_q(args.attention) != constants.head) constants = head_constants(work);
  }

  /// Issues S^T = K Q^T.
  FOVEAL_DEVICE void issue_qk(float (&scores)[kBlockQ / 2], u32 use) const { issue_qk(scores, qk_operands(use)); }
  struct QkOperands {
    KeyTile keys{0};
    QueryTile queries{0};
  };
  FOVEAL_DEVICE QkOperands qk_operands(u32 use) const { return {uniform(pipelines.key_tile()), uniform(pipelines.query_tile(use))}; }
  FOVEAL_DEVICE void issue_qk(float (&scores)[kBlockQ / 2], const QkOperands& operands) const {
    wgmma_pin(scores);
    wgmma_fence();
    multiply_rows<Element, kBlockQ, kDim>(scores, operands.keys, first_key, operands.queries);
    wgmma_commit();
  }

  /// Q and lse must have arrived.
  FOVEAL_DEVICE void prefetch_lse(LsePrefetch& prefetch, u32 use) const {
#pragma unroll
    for (int i = 0; i < kBlockQ / 2; i += 4) {
      float two[2];
      load_pair(pipelines.lse(use) + 4 * (fragment_first_column(thread) + fragment_column(i)), two);
      prefetch.value[i / 2] = two[0];
      prefetch.value[i / 2 + 1] = two[1];
    }
  }

  /// Issues the loads of pair reads before the scores arrive.
  FOVEAL_DEVICE void prefetch_pairs(PairPrefetch& prefetched, const BackwardTask& work, u32 use, bool partial) const {
    if constexpr (kPairReads == 0) return;
    const WarpPairs pairs = warp_pairs(work, use, prefetched);
    if (partial) {
#pragma unroll
      for (int i = 0; i < kPrefetched; ++i)
        load_pair_values<true, false, kBlockKv>(prefetched, i, pairs.template position<true>(i), args.attention.score);
    } else {
#pragma unroll
      for (int i = 0; i < kPrefetched; ++i)
        load_pair_values<true, false, kBlockKv>(prefetched, i, pairs.template position<false>(i), args.attention.score);
    }
  }

  /// Q and lse must have arrived; best called while products are in flight.
  FOVEAL_DEVICE TileKind kind_of(bool partial, u32 use) const {
    u32 any = 0;
#pragma unroll
    for (int i = 0; i < kShared.far_bytes; i += 16) {
      u32 words[4];
      load_words(pipelines.far(use) + i, words);
      any |= words[0] | words[1] | words[2] | words[3];
    }
    return __any_sync(~0u, any != 0) ? TileKind::far : partial ? TileKind::partial : TileKind::full;
  }

  /// Are the values of the warp's keys, from which term factors are made, tame? Warp-collective; called when keys or head change.
  FOVEAL_DEVICE bool keys_are_tame(const BackwardTask& work) const {
    if constexpr (!kTameReads) return false;
    const Position base = work.base(args.attention);
    bool tame = true;
#pragma unroll
    for (int row = 0; row < 2; ++row) tame = key_is_tame<0>(position_at(args.attention, base, 0, key_of(work) + 8 * row)) & tame;
    return __all_sync(~0u, tame);
  }
  template <int v>
  FOVEAL_DEVICE bool key_is_tame(const Position& at) const {
    if constexpr (v < kKeyValues) return is_tame(key_value<v>(at, args.attention.score)) & key_is_tame<v + 1>(at);
    return true;
  }
  /// A tile with possibly infinite factors is treated as partial, where each term is checked. Line values must have arrived.
  FOVEAL_DEVICE TileKind guard_factors(TileKind kind, bool tame_keys, u32 use) const {
    bool tame = tame_keys;
    if constexpr (kChecksLines) tame = tame && pipelines.lines(use).tame();
    return kind == TileKind::full && !tame ? TileKind::partial : kind;
  }
};

}  // namespace foveal::device
