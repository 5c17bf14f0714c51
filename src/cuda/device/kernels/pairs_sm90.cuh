// Gradient of a parameter with one element for each pair (a bias) that batch entries or heads share, for Hopper and 16-bit types, after the
// backward kernel. A CTA owns tiles of pairs and, for each, loops over the batch entries and heads that share it in order, so that each
// element is summed by one thread in a fixed order, without atomics, and written once:
//  s = q k^T;  dp = dout v^T;  ds' = p (dp - delta);  values[index] = sum of ds' factor
//
// One warp loads by TMA, two consumer warpgroups compute 64 queries each, half a tile at a time, so that products of one overlap with
// arithmetic of the other. Another warp loads pair reads that arrive as tiles. If the parameter is exactly the pairs (kCovers), the
// remaining warps write zeros to tiles that the mask drops, instead of a memset: with each task those of the mirrored row, so that under a
// causal mask writes are spread evenly over time. All at once they would starve everything else.
//
// config.cuh: Element, SeqlenIndex, Gradient (type of the parameter's gradient); kHeadDim, kHeadDimV (multiples of 8, up to 256), kBlockKv
// (64 or 128), kConsumers, kStages, kPairStages, kTasksAhead (of the zeroing warps), kTileSource (a TileSource); kPairsRead,
// kPairsOwnBatch, kPairsOwnHead (is the parameter indexed by batch, by head?), kPairsDiffer (pair reads differ between those that share an
// element), kHoldPairs (pair reads stay in registers), kCovers; kProducerRegisters, kConsumerRegisters.
#include "schedule/tasks.cuh"
#include "score/far_row.cuh"
#include "score/read_targets.cuh"
#include "tile/fragment.cuh"
#include "tile/kept_columns.cuh"
#include "tile/pair_tiles.cuh"

namespace foveal::device {

constexpr int kBlockQ = 64 * kConsumers;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kHalf = 64;  // columns of a step
constexpr int kHalves = kBlockKv / kHalf;
constexpr int kDim = round_up(kHeadDim, 16);
constexpr int kDimV = round_up(kHeadDimV, 16);
constexpr TileSource kSource = static_cast<TileSource>(kTileSource);
constexpr bool kMaskProgram = kSource == TileSource::list && kHasMask;
using Walk = TileWalk<kSource, false>;
using QueryTile = SwizzledTile<kBlockQ>;
using KvTile = SwizzledTile<kBlockKv>;
using Pairs = PairTiles<kBlockQ, kHalf>;
using Tiled = TiledValues[kHalves][kHalf / 16];
constexpr bool kHoldTiles = kHoldPairs && kPairTiles > 0 && kPairTiles <= 2;          // registers suffice for no more
constexpr int kFirstCleaner = kPairTiles > 0 ? 2 : 1, kCleaners = 4 - kFirstCleaner;  // warps

constexpr PairsLayout kShared{{.block_q = kBlockQ,
                               .block_kv = kBlockKv,
                               .head_dim = kDim,
                               .head_dim_v = kDimV,
                               .stages = kStages,
                               .tasks_ahead = kTasksAhead,
                               .pairs = Pairs::kShape}};
static_assert(kShared.bytes == kSharedBytes, "the host set aside another size");

/// Stages of everything that one batch entry and head contribute to a tile of pairs; of pair reads, by half tiles; and of started tasks.
struct Pipelines {
  u32 base;
  Pipeline<kStages> stage;
  Pipeline<kTasksAhead> tasks;
  Pairs pairs;
  FOVEAL_DEVICE explicit Pipelines(u32 address)
      : base(address),
        stage{address + kShared.barriers},
        tasks{address + kShared.task_barriers},
        pairs{address + kShared.pairs, {address + kShared.pair_barriers}} {}
  FOVEAL_DEVICE u32 at(u32 use, int piece) const { return base + stage.index(use) * kShared.stage_bytes + piece; }
};

/// Every `splits`-th tile of one row of queries.
struct PairsTask {
  Task task;  // row: of tiles, times splits
  Walk walk;
  int row, split;

  FOVEAL_DEVICE int first_q() const { return row * kBlockQ; }

  /// mirrored: the row that is equally far from the other end.
  FOVEAL_DEVICE bool next(int& round, const PairsArgs& args, bool mirrored = false) {
    if (!task_at(++round, args.sm90.order, task)) return false;
    const AttentionArgs& attention = args.sm90.attention;
    row = divide(task.row, args.splits);
    split = task.row - row * args.splits.value;
    if (mirrored) row = divide(args.sm90.order.rows, args.splits) - 1 - row;
    walk.start(args.sm90, attention.runs, task.batch, task.head, row, first_q(), min(first_q() + kBlockQ, attention.seqlen_q),
               attention.seqlen_kv, kBlockKv);
    return true;
  }

  FOVEAL_DEVICE bool next_tile(const PairsArgs& args, bool& partial) {
    const AttentionArgs& attention = args.sm90.attention;
    for (;;) {
      if (!walk.next(attention.runs, attention.seqlen_kv, kBlockKv, partial)) return false;
      const int from_first = walk.tile + args.splits.value - split;
      const int beyond = from_first - divide(from_first, args.splits) * args.splits.value;  // own tiles to skip
      if (beyond == 0) break;
      walk.tile -= beyond - 1;
    }
    partial = partial || first_q() + kBlockQ > attention.seqlen_q;
    return true;
  }

  /// Calls visit(batch, head, last) for all that share the task's elements.
  template <class Visit>
  FOVEAL_DEVICE void for_each_sharer(const AttentionArgs& attention, Visit&& visit) const {
    const int batches = kPairsOwnBatch ? task.batch + 1 : attention.batch, heads = kPairsOwnHead ? task.head + 1 : attention.heads_q;
    for (int batch = kPairsOwnBatch ? task.batch : 0; batch < batches; ++batch)
      for (int head = kPairsOwnHead ? task.head : 0; head < heads; ++head) visit(batch, head, batch + 1 == batches && head + 1 == heads);
  }
};

FOVEAL_DEVICE void produce(const PairsArgs& args, const Pipelines& pipelines) {
  const Sm90Args& maps = args.sm90;
  const AttentionArgs& attention = maps.attention;
  const float* lse2 = static_cast<const float*>(attention.lse2.data);
  const float* delta = static_cast<const float*>(attention.delta.data);
  int round = -1;
  u32 use = 0;
  PairsTask work;
  while (work.next(round, args)) {
    if constexpr (kCovers) {
      pipelines.tasks.producer_acquire(round);
      mbarrier_arrive(pipelines.tasks.full_barrier(round));
    }
    bool partial;
    while (work.next_tile(args, partial)) {
      work.for_each_sharer(attention, [&](int batch, int head, bool) {
        const int row = work.first_q(), key = work.walk.tile * kBlockKv, kv_head = head / attention.group_size;
        const i64 stat = (static_cast<i64>(batch) * attention.heads_q + head) * maps.stat_rows + row;
        const u32 full = pipelines.stage.full_barrier(use);
        pipelines.stage.producer_acquire(use);
        mbarrier_arrive_expect_bytes(full, kShared.loaded_bytes);
        load_tile<kBlockQ, kDim>(pipelines.at(use, kShared.query), maps.q, full, row, head, batch);
        load_tile<kBlockKv, kDim>(pipelines.at(use, kShared.key), maps.k, full, key, kv_head, batch);
        load_tile<kBlockQ, kDimV>(pipelines.at(use, kShared.dout), maps.dout, full, row, head, batch);
        load_tile<kBlockKv, kDimV>(pipelines.at(use, kShared.value), maps.v, full, key, kv_head, batch);
        bulk_load(pipelines.at(use, kShared.lse), lse2 + stat, kShared.stat_bytes, full);
        bulk_load(pipelines.at(use, kShared.delta), delta + stat, kShared.stat_bytes, full);
        ++use;
      });
    }
  }
}

/// Loads pair reads: for each tile of a task, or for each that shares it.
FOVEAL_DEVICE void produce_pairs(const PairsArgs& args, const Pipelines& pipelines) {
  const AttentionArgs& attention = args.sm90.attention;
  for (int v = 0; v < kPairTiles; ++v) tma_prefetch_map(args.sm90.pairs[v]);
  int round = -1;
  u32 use = 0;
  PairsTask work;
  while (work.next(round, args)) {
    bool partial;
    while (work.next_tile(args, partial)) {
      const auto load = [&](int batch, int head, bool) {
#pragma unroll 1
        for (int half = 0; half < kHalves; ++half) {
          const int q = work.first_q() + static_cast<int>(attention.q_offset);
          const int kv = work.walk.tile * kBlockKv + half * kHalf + static_cast<int>(attention.kv_offset);
          pipelines.pairs.load(args.sm90, {batch, head, q, kv, attention.seqlen_q, attention.seqlen_kv}, use++);
        }
      };
      if constexpr (kPairsDiffer) {
        work.for_each_sharer(attention, load);
      } else {
        load(work.task.batch, work.task.head, true);
      }
    }
  }
}

/// Address of a pair's element, and the strides to the next query and key.
struct Elements {
  Gradient* first;
  i64 row_stride, column_stride;

  FOVEAL_DEVICE Elements(const AttentionArgs& args, const Task& task, int q, int kv) {
    const ParamGradient& gradient = args.gradient[kReadParam[kPairsRead]];
    const Position at{task.batch,    task.head,     q + static_cast<int>(args.q_offset), kv + static_cast<int>(args.kv_offset),
                      args.seqlen_q, args.seqlen_kv};
    int index[kMaxParamRank];
    read_index<kPairsRead>(0.0f, at, args.score, index);
    first = static_cast<Gradient*>(gradient.values);
#pragma unroll
    for (int d = 0; d < kReadRank[kPairsRead]; ++d) first += index[d] * gradient.stride[d];
    row_stride = gradient.stride[kReadRowDim[kPairsRead]];
    column_stride = gradient.stride[kReadColumnDim[kPairsRead]];
  }
  /// May `count` neighbours of every row be written by one vector store?
  FOVEAL_DEVICE bool side_by_side(int count) const {
    return column_stride == 1 && row_stride % count == 0 && reinterpret_cast<u64>(first) % (sizeof(Gradient) * count) == 0;
  }
};

/// Writes zeros to the tiles that a task's mirrored row does not visit. By kCleaners warps.
struct Cleaner {
  const PairsArgs& args;
  const Pipelines& pipelines;

  FOVEAL_DEVICE void run() const {
    int round = -1;
    PairsTask work;
    while (work.next(round, args, true)) {
      pipelines.tasks.consumer_wait(round);
      int end = divide_up(args.sm90.attention.seqlen_kv, kBlockKv);
      bool partial;
      while (work.next_tile(args, partial)) {
        clear(work, work.walk.tile + 1, end);
        end = work.walk.tile;
      }
      clear(work, 0, end);
      consumer_release(pipelines.tasks, round);
    }
  }

  FOVEAL_DEVICE void clear(const PairsTask& work, int begin, int end) const {
    const AttentionArgs& attention = args.sm90.attention;
    const int rows = min(kBlockQ, attention.seqlen_q - work.first_q());
    const int splits = args.splits.value, before = divide(begin + splits - 1 - work.split, args.splits);  // own tiles
    for (int tile = work.split + before * splits; tile < end; tile += splits) {
      const Elements to(attention, work.task, work.first_q(), tile * kBlockKv);
      const int columns = min(kBlockKv, attention.seqlen_kv - tile * kBlockKv);
      constexpr int kAtOnce = 16 / sizeof(Gradient);
      const bool wide = to.side_by_side(kAtOnce) && columns % kAtOnce == 0;
      for (int row = warp_id() - kFirstCleaner; row < rows; row += kCleaners) {
        Gradient* at = to.first + row * to.row_stride;
        if (wide) {
          for (int c = kAtOnce * lane_id(); c < columns; c += kAtOnce * kWarp) store_streaming(at + c, make_uint4(0, 0, 0, 0));
        } else {
          for (int c = lane_id(); c < columns; c += kWarp) from_real(at[c * to.column_stride], 0.0f);
        }
      }
    }
  }
};

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
      float term = p * (dp[i] - delta[r]) * read_factor<kPairsRead>(score, at, attention.score);
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
          if constexpr (kHoldPairs) load_pairs(pairs[half], work, work.task.batch, work.task.head, half, true);
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
          add_tile(work, batch, head, partial, use, kHalves * (kPairsDiffer ? use : tile), kPairsDiffer || last, sum, pairs, tiled);
          ++use;
        });
        if (!write_aligned<Gradient>(work, sum)) write(work, sum);
      }
    }
  }

  FOVEAL_DEVICE void load_tiled(TiledValues (&tiled)[kHalf / 16], u32 use) const {
    const TiledView<false, kBlockQ, kHalf> view(pipelines.pairs, use, 64 * group + 16 * (thread / kWarp), {}, args.sm90.attention.score);
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
      if constexpr (!kHoldPairs) load_pairs(pairs[half], work, batch, head, half, true);
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
    pipelines.stage.init(1, arrivals_of_warps(4 * kConsumers));
    pipelines.tasks.init(1, arrivals_of_warps(kCleaners));
    if constexpr (kPairTiles > 0) pipelines.pairs.pipeline.init(1, arrivals_of_warps(4 * kConsumers));
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warp_group == 0) {
    registers_decrease<kProducerRegisters>();
    if (threadIdx.x == 0) produce(args, pipelines);
    if (kPairTiles > 0 && threadIdx.x == kWarp) produce_pairs(args, pipelines);
    if (kCovers && warp_id() >= kFirstCleaner) Cleaner{args, pipelines}.run();
  } else {
    registers_increase<kConsumerRegisters>();
    Consumer(args, pipelines, warp_group - 1).run();
  }
}
