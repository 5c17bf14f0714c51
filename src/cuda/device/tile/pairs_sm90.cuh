#pragma once
// Shared memory, pipelines, tasks and loads of kernels/pairs_sm90.cuh.
#include "schedule/tasks.cuh"
#include "sm90_config.cuh"
#include "tile/pair_tiles.cuh"

namespace foveal::device {

constexpr int kBlockQ = kConfig.block_q, kBlockKv = kConfig.block_kv, kThreads = kConfig.threads;
constexpr int kHalf = 64;  // columns of a step
constexpr int kHalves = kBlockKv / kHalf;
constexpr int kDim = round_up(kProblem.head_dim, 16);
constexpr int kDimV = round_up(kProblem.head_dim_v, 16);
constexpr TileSource kSource = kConfig.tile_source;
constexpr bool kMaskProgram = kSource == TileSource::list && kHasMask;
using Walk = TileWalk<kSource, false>;
using QueryTile = SwizzledTile<kBlockQ>;
using KvTile = SwizzledTile<kBlockKv>;
using Pairs = PairTiles<kBlockQ, kHalf, kConfig.pair_stages>;
using Tiled = TiledValues[kHalves][kHalf / 16];
constexpr bool kHoldTiles = kConfig.hold_pairs && kPairTiles > 0 && kPairTiles <= 2;  // registers suffice for no more
constexpr int kFirstCleaner = kPairTiles > 0 ? 2 : 1, kCleaners = 4 - kFirstCleaner;  // warps

constexpr PairsLayout kShared{{.block_q = kBlockQ,
                               .block_kv = kBlockKv,
                               .head_dim = kDim,
                               .head_dim_v = kDimV,
                               .stages = kConfig.stages,
                               .tasks_ahead = kConfig.tasks_ahead,
                               .pairs = Pairs::kShape}};
static_assert(kShared.bytes == kSharedBytes, "the host set aside another size");

/// Stages of everything that one batch entry and head contribute to a tile of pairs; of pair reads, by half tiles; and of started tasks.
struct Pipelines {
  u32 base;
  Pipeline<kConfig.stages> stage;
  Pipeline<kConfig.tasks_ahead> tasks;
  Pairs pairs;
  FOVEAL_DEVICE explicit Pipelines(u32 address)
      : base(address),
        stage{address + kShared.barriers},
        tasks{address + kShared.task_barriers},
        pairs{address + kShared.pairs, {address + kShared.pair_barriers}} {}
  FOVEAL_DEVICE u32 at(u32 use, int piece) const { return base + stage.index(use) * kShared.stage_bytes + piece; }
};

/// Every `row_parts`-th tile of one row of queries.
struct PairsTask {
  Task task;  // row: of tiles, times row_parts
  Walk walk;
  int row, part;

  FOVEAL_DEVICE int first_q() const { return row * kBlockQ; }

  /// mirrored: the row that is equally far from the other end.
  FOVEAL_DEVICE bool next(int& round, const PairsArgs& args, bool mirrored = false) {
    if (!task_at(++round, args.sm90.order, task)) return false;
    const AttentionArgs& attention = args.sm90.attention;
    row = divide(task.row, args.row_parts);
    part = task.row - row * args.row_parts.value;
    if (mirrored) row = divide(args.sm90.order.rows, args.row_parts) - 1 - row;
    walk.start(args.sm90, attention.runs, task.batch, task.head, row, first_q(), min(first_q() + kBlockQ, attention.seqlen_q),
               attention.seqlen_kv, kBlockKv);
    return true;
  }

  FOVEAL_DEVICE bool next_tile(const PairsArgs& args, bool& partial) {
    const AttentionArgs& attention = args.sm90.attention;
    for (;;) {
      if (!walk.next(attention.runs, attention.seqlen_kv, kBlockKv, partial)) return false;
      const int from_first = walk.tile + args.row_parts.value - part;
      const int beyond = from_first - divide(from_first, args.row_parts) * args.row_parts.value;  // own tiles to skip
      if (beyond == 0) break;
      walk.tile -= beyond - 1;
    }
    partial = partial || first_q() + kBlockQ > attention.seqlen_q;
    return true;
  }

  /// Calls visit(batch, head, last) for all that share the task's elements.
  template <class Visit>
  FOVEAL_DEVICE void for_each_sharer(const AttentionArgs& attention, Visit&& visit) const {
    const int batches = kConfig.own_batch ? task.batch + 1 : attention.batch, heads = kConfig.own_head ? task.head + 1 : attention.heads_q;
    for (int batch = kConfig.own_batch ? task.batch : 0; batch < batches; ++batch)
      for (int head = kConfig.own_head ? task.head : 0; head < heads; ++head) visit(batch, head, batch + 1 == batches && head + 1 == heads);
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
    if constexpr (kConfig.covers) {
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
      if constexpr (kConfig.pairs_differ) {
        work.for_each_sharer(attention, load);
      } else {
        load(work.task.batch, work.task.head, true);
      }
    }
  }
}

}  // namespace foveal::device
