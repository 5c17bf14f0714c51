// Gradient of a parameter with one element for each pair (a bias) that batch entries or heads share, for Hopper and 16-bit types, after the
// backward kernel. A CTA owns tiles of pairs and, for each, loops over the batch entries and heads that share it in order, so that each
// element is summed by one thread in a fixed order, without atomics, and written once:
//  s = q k^T;  dp = dout v^T;  ds' = p (dp - delta);  values[index] = sum of ds' factor
//
// One warp loads by TMA, two consumer warpgroups compute 64 queries each, half a tile at a time, so that products of one overlap with
// arithmetic of the other. Another warp loads pair reads that arrive as tiles. If the parameter is exactly the pairs (covers), the
// remaining warps write zeros to tiles that the mask drops, instead of a memset: with each task those of the mirrored row, so that under a
// causal mask writes are spread evenly over time. All at once they would starve everything else.
//
// config.cuh: kProblem, kConfig (a PairsConfig), Gradient (type of the parameter's gradient).
#include "score/far_row.cuh"
#include "tile/fragment.cuh"
#include "tile/kept_columns.cuh"
#include "tile/pair_elements.cuh"

namespace foveal::device {

/// One warpgroup: 64 queries of every tile.
struct Consumer {
  const PairsArgs& args;
  const Pipelines& pipelines;
  const int group, thread;

  FOVEAL_DEVICE Consumer(const PairsArgs& args, const Pipelines& pipelines, int group)
      : args(args), pipelines(pipelines), group(group), thread(threadIdx.x % 128) {}

  FOVEAL_DEVICE int row_of(const PairsTask& work) const { return work.first_q() + 64 * group + fragment_first_row(thread); }
  FOVEAL_DEVICE int key_of(const PairsTask& work, int half) const {
    return work.walk.tile * kBlockKv + half * kHalf + fragment_first_column(thread);
  }

  FOVEAL_DEVICE Position position(const PairsTask& work, int batch, int head, int half, int i, bool partial) const {
    const AttentionArgs& attention = args.sm90.attention;
    const int row = row_of(work), key = key_of(work, half);
    const int origin_q = row + static_cast<int>(attention.q_offset), origin_kv = key + static_cast<int>(attention.kv_offset);
    int q_step = 8 * fragment_row(i), kv_step = fragment_column(i);
    if (partial) {
      q_step = min(q_step, attention.seqlen_q - 1 - row);
      kv_step = min(kv_step, attention.seqlen_kv - 1 - key);
    }
    return {batch, head, origin_q + q_step, origin_kv + kv_step, attention.seqlen_q, attention.seqlen_kv, q_step, kv_step};
  }

  FOVEAL_DEVICE void load_pairs(PairValues (&pairs)[kHalf / 2], const PairsTask& work, int batch, int head, int half, bool partial) const {
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i)
      load_pair_values(pairs[i], position(work, batch, head, half, i, partial), args.sm90.attention.score);
  }

  /// Adds half a tile of one batch entry and head.
  template <bool partial>
  FOVEAL_DEVICE void add_terms(float (&sum)[kHalf / 2], const float (&scores)[kHalf / 2], const float (&dp)[kHalf / 2],
                               const PairValues (&pairs)[kHalf / 2], const TiledValues (&tiled)[kHalf / 16], const float (&lse2)[2],
                               const float (&largest)[2], const float (&delta)[2], const PairsTask& work, int batch, int head,
                               int half) const {
    const AttentionArgs& attention = args.sm90.attention;
    const float scale = args.sm90.scale;
    const float exponent = score_unit({1, scale}, position(work, batch, head, half, 0, true), attention.score) * kLog2e;
    const int row = row_of(work), key = key_of(work, half);
    const KeptColumns<Walk> columns = columns_kept_by_queries<Walk>(args.sm90, row, key);
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i) {
      const int r = fragment_row(i), column = fragment_column(i);
      Pair at;
      static_cast<Position&>(at) = position(work, batch, head, half, i, partial);
      pairs[i].put_into(at);
      tiled[i / 8].put_into(at, i);
      const Score score{scores[i], scale};
      const float p = exp2_real(fmaf(unfused_difference(score_in_units(score, at, attention.score), largest[r]), exponent, -lse2[r]));
      float term = p * (dp[i] - delta[r]) * read_factor<kConfig.read>(score, at, attention.score);
      if constexpr (partial) {
        bool keep = columns.keep(r, column);
        if constexpr (kMaskProgram) keep = mask_keep(at, attention.score) & keep;
        term = keep ? term : 0.0f;
      }
      sum[i] += term;
    }
  }

  /// Vectorised stores where rows are aligned: 16 bytes a lane, so 32 columns a quad in 16 bits and 16 in fp32. Returns false if they are
  /// not.
  template <class Value>
  FOVEAL_DEVICE bool write_aligned(const PairsTask& work, const float (&sum)[kHalves][kHalf / 2]) const {
    if constexpr (sizeof(Value) > 4) return false;
    const AttentionArgs& attention = args.sm90.attention;
    const int lane = thread % 4, row = row_of(work), first_key = work.walk.tile * kBlockKv;
    const Elements to(attention, work.task, row, first_key);
    constexpr int kAtOnce = 16 / sizeof(Value), kBlocks = kAtOnce / 2;
    if (!to.side_by_side(kAtOnce) || attention.seqlen_kv % kAtOnce != 0) return false;
    const int lane_column = kSame<Value, float> ? lane % 2 * 8 + lane / 2 * 4 : 8 * lane;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      Value* at = to.first + 8 * r * to.row_stride + lane_column;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int block = 0; block < kHalf / 8; block += kBlocks) {
          u32 word[4];
          if constexpr (kSame<Value, float>) {
#pragma unroll
            for (int i = 0; i < 4; ++i) word[i] = __float_as_uint(sum[half][4 * (block + i / 2) + 2 * r + i % 2]);
            const bool odd = lane & 1;  // swaps with its neighbour: even lanes take the first block, odd ones the second
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const u32 received = __shfl_xor_sync(~0u, odd ? word[i] : word[i + 2], 1);
              if (odd)
                word[i] = received;
              else
                word[i + 2] = received;
            }
          } else if constexpr (sizeof(Value) == 2) {
#pragma unroll
            for (int i = 0; i < 4; ++i) word[i] = pack(Value{}, sum[half][4 * (block + i) + 2 * r], sum[half][4 * (block + i) + 2 * r + 1]);
            quad_transpose(word, lane);
          }
          const int column = half * kHalf + 8 * block;
          if (row + 8 * r < attention.seqlen_q && first_key + column + lane_column < attention.seqlen_kv)
            store_streaming(at + column, make_uint4(word[0], word[1], word[2], word[3]));
        }
      }
    }
    return true;
  }

  FOVEAL_DEVICE void write(const PairsTask& work, const float (&sum)[kHalves][kHalf / 2]) const {
    const AttentionArgs& attention = args.sm90.attention;
    const int row = row_of(work), key = key_of(work, 0);
    const Elements to(attention, work.task, row, key);
    const bool wide = kSame<Gradient, float> && to.side_by_side(2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r >= attention.seqlen_q) continue;
      Gradient* at = to.first + 8 * r * to.row_stride;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int i = 2 * r; i < kHalf / 2; i += 4) {
          const int column = half * kHalf + fragment_column(i);
          const float x = sum[half][i], y = sum[half][i + 1];
          if (wide && key + column + 1 < attention.seqlen_kv) {
            store_streaming(reinterpret_cast<float*>(at + column), make_float2(x, y));
          } else {
            if (key + column < attention.seqlen_kv) from_real(at[column * to.column_stride], x);
            if (key + column + 1 < attention.seqlen_kv) from_real(at[(column + 1) * to.column_stride], y);
          }
        }
      }
    }
  }

  FOVEAL_DEVICE void run() const {
    int round = -1;
    u32 use = 0, tile = 0;
    PairsTask work;
    while (work.next(round, args)) {
      bool partial;
      for (; work.next_tile(args, partial); ++tile) {
        float sum[kHalves][kHalf / 2];
        PairValues pairs[kHalves][kHalf / 2];
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
#pragma unroll
          for (int i = 0; i < kHalf / 2; ++i) sum[half][i] = 0;
          if constexpr (kConfig.hold_pairs) load_pairs(pairs[half], work, work.task.batch, work.task.head, half, true);
        }
        Tiled tiled;
        if constexpr (kHoldTiles) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            load_tiled(tiled[half], kHalves * tile + half);
            consumer_release_loaded(pipelines.pairs.pipeline, kHalves * tile + half);
          }
        }
        work.for_each_sharer(args.sm90.attention, [&](int batch, int head, bool last) {
          add_tile(work, batch, head, partial, use, kHalves * (kConfig.pairs_differ ? use : tile), kConfig.pairs_differ || last, sum, pairs,
                   tiled);
          ++use;
        });
        if (!write_aligned<Gradient>(work, sum)) write(work, sum);
      }
    }
  }

  FOVEAL_DEVICE void load_tiled(TiledValues (&tiled)[kHalf / 16], u32 use) const {
    const TiledView<false, Pairs> view(pipelines.pairs, use, 64 * group + 16 * (thread / kWarp), {}, args.sm90.attention.score);
    pipelines.pairs.pipeline.consumer_wait(use);
#pragma unroll
    for (int n = 0; n < kHalf / 16; ++n) tiled[n] = view.load(n);
  }

  /// pair_use: pipeline use of the first half's pair reads; `last` to read them.
  FOVEAL_DEVICE void add_tile(const PairsTask& work, int batch, int head, bool partial, u32 use, u32 pair_use, bool last,
                              float (&sum)[kHalves][kHalf / 2], PairValues (&pairs)[kHalves][kHalf / 2], Tiled& tiled) const {
    // Not through shared memory, which is full.
    const float* rows = static_cast<const float*>(args.sm90.attention.largest.data) +
                        (static_cast<i64>(batch) * args.sm90.attention.heads_q + head) * args.sm90.stat_rows + row_of(work);
    const float largest[2] = {rows[0], rows[8]};
    pipelines.stage.consumer_wait(use);
    float lse2[2], delta[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 4 * (64 * group + fragment_first_row(thread) + 8 * r);
      lse2[r] = load_float(pipelines.at(use, kShared.lse) + row);
      delta[r] = load_float(pipelines.at(use, kShared.delta) + row);
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float scores[kHalf / 2], dp[kHalf / 2];
      wgmma_pin(scores);
      wgmma_pin(dp);
      wgmma_fence();
      multiply_rows<Element, kHalf, kDim>(scores, uniform(QueryTile{pipelines.at(use, kShared.query)}), 64 * group,
                                          uniform(KvTile{pipelines.at(use, kShared.key)}), half * kHalf);
      multiply_rows<Element, kHalf, kDimV>(dp, uniform(QueryTile{pipelines.at(use, kShared.dout)}), 64 * group,
                                           uniform(KvTile{pipelines.at(use, kShared.value)}), half * kHalf);
      wgmma_commit();
      if constexpr (!kConfig.hold_pairs) load_pairs(pairs[half], work, batch, head, half, true);
      wgmma_wait<0>();
      wgmma_pin(scores);
      wgmma_pin(dp);
      if (half == kHalves - 1) consumer_release_loaded(pipelines.stage, use);
      if constexpr (kPairTiles > 0 && !kHoldTiles) load_tiled(tiled[half], pair_use + half);
      if (partial) {
        add_terms<true>(sum[half], scores, dp, pairs[half], tiled[half], lse2, largest, delta, work, batch, head, half);
      } else {
        add_terms<false>(sum[half], scores, dp, pairs[half], tiled[half], lse2, largest, delta, work, batch, head, half);
      }
      if (kPairTiles > 0 && !kHoldTiles && last) consumer_release_loaded(pipelines.pairs.pipeline, pair_use + half);
    }
  }
};

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 1)
    pairs_sm90(const __grid_constant__ foveal::device::PairsArgs args) {
  using namespace foveal::device;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Pipelines pipelines(shared_address(shared));
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    pipelines.stage.init(1, arrivals_of_warps(4 * kConfig.consumers));
    pipelines.tasks.init(1, arrivals_of_warps(kCleaners));
    if constexpr (kPairTiles > 0) pipelines.pairs.pipeline.init(1, arrivals_of_warps(4 * kConfig.consumers));
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warp_group == 0) {
    registers_decrease<kConfig.producer_registers()>();
    if (threadIdx.x == 0) produce(args, pipelines);
    if (kPairTiles > 0 && threadIdx.x == kWarp) produce_pairs(args, pipelines);
    if (kConfig.covers && warp_id() >= kFirstCleaner) Cleaner{args, pipelines}.run();
  } else {
    registers_increase<kConfig.consumer_registers()>();
    Consumer(args, pipelines, warp_group - 1).run();
  }
}
