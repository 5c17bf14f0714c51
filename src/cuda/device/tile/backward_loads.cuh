#pragma once
// The first warpgroup of the backward kernels: TMA loads, line values, the order of additions to dQ (deterministic), and sums for parameter
// gradients.
#include "tile/backward_sm90.cuh"

namespace foveal::device {

/// Loads the CTA's keys, and in a cluster the peer's, of those the columns for this CTA's part of dQ.
FOVEAL_DEVICE void load_keys_of_task(const Sm90Args& args, const Pipelines& pipelines, u32 use, int row, int head, int batch) {
  const u32 full = pipelines.key.full_barrier(use);
  mbarrier_arrive_expect_bytes(full, kShared.key_bytes + (kShared.query - kShared.peer_key));
  load_tile<kBlockKv, kFamily.key_columns(kDqSum), kKeyStep>(pipelines.key_tile().address, args.k, full, row, head, batch);
  if constexpr (kClusterSize > 1) {
    const int peer_row = row + (cluster_rank() == 0 ? kBlockKv : -kBlockKv);
    load_tile<kBlockKv, 2 * kPartColumns, kKeyStep>(pipelines.peer_key_tile().address, args.k, full, peer_row, head, batch,
                                                    2 * kPartColumns * cluster_rank());
  }
}

FOVEAL_DEVICE void produce(const Sm90Args& args, const Pipelines& pipelines) {
  tma_prefetch_map(args.k);
  tma_prefetch_map(args.q);
  tma_prefetch_map(args.v);
  tma_prefetch_map(args.dout);
  for (int v = 0; v < kPairTiles; ++v) tma_prefetch_map(args.pairs[v]);
  const float* lse2 = static_cast<const float*>(args.attention.lse2.data);
  const float* delta = static_cast<const float*>(args.attention.delta.data);
  int round = -1;
  BackwardTask work;
  u32 tile = 0, tasks = 0;
  while (work.next(round, args)) {
    const int batch = kProblem.varlen ? 0 : work.task.batch;
    const int batch_kv = kRaggedKv ? 0 : batch, row_kv = work.sequence.first_kv + work.first_kv();
    const auto load_key = [&] {
      pipelines.key.producer_acquire(tasks);
      load_keys_of_task(args, pipelines, tasks, row_kv, work.task.head, batch_kv);
    };
    const auto load_value = [&] {
      pipelines.value.producer_acquire(tasks);
      mbarrier_arrive_expect_bytes(pipelines.value.full_barrier(tasks), kShared.value_bytes);
      load_tile<kBlockKv, kDimV>(pipelines.value_tile().address, args.v, pipelines.value.full_barrier(tasks), row_kv, work.task.head,
                                 batch_kv);
    };
    bool partial, first = true;
    while (work.next_tile(args, partial)) {
      const int head = work.head_q(args.attention);
      const int row_q = work.first_q();
      const int token = work.sequence.first_q + row_q;
      const i64 stat = stat_row<kProblem.varlen>(args, work.sequence, head) + row_q;
      const bool follows = first && tasks > 0;  // the previous task releases V before K
      if (first && !follows) load_key();
      pipelines.query.producer_acquire(tile);
      mbarrier_arrive_expect_bytes(pipelines.query.full_barrier(tile), kShared.query_bytes + kShared.stat_bytes + kShared.far_bytes);
      load_tile<kBlockQ, kDim>(pipelines.query_tile(tile).address, args.q, pipelines.query.full_barrier(tile), token, head, batch);
      bulk_load(pipelines.lse(tile), lse2 + stat, kShared.stat_bytes, pipelines.query.full_barrier(tile));
      bulk_load(pipelines.far(tile), args.far + stat / 8, kShared.far_bytes, pipelines.query.full_barrier(tile));
      if (first && !follows) load_value();
      pipelines.dout.producer_acquire(tile);
      mbarrier_arrive_expect_bytes(pipelines.dout.full_barrier(tile), kShared.dout_bytes + kShared.stat_bytes);
      load_tile<kBlockQ, kDimV>(pipelines.dout_tile(tile).address, args.dout, pipelines.dout.full_barrier(tile), token, head, batch);
      bulk_load(pipelines.delta(tile), delta + stat, kShared.stat_bytes, pipelines.dout.full_barrier(tile));
      pipelines.pairs.load(args, work.first_pair(args.attention), tile);
      if (follows) {
        load_value();
        load_key();
      }
      if (first) ++tasks;
      first = false;
      ++tile;
    }
  }
}

/// Deterministic mode: key blocks add to dQ of a query tile in order, as with FA3's dq_semaphore. One thread waits for this block's turn
/// ahead of the warps that add, and passes it on after them. A block waits only for tasks dealt before its own, so with all CTAs
/// co-resident there is no deadlock.
FOVEAL_DEVICE void order_dq_adds(const Sm90Args& args, const Pipelines& pipelines) {
  int round = -1;
  BackwardTask work;
  u32 tile = 0;
  bool partial;
  while (work.next(round, args)) {
    while (work.next_tile(args, partial)) {
      const i64 row = stat_row<kProblem.varlen>(args, work.sequence, work.head_q(args.attention)) + work.first_q();
      const int first_key =
          kSource == TileSource::band ? max(work.first_q() + args.band_low, 0) : 0;  // first key that the tile's queries keep
      const u32 order = work.task.row - first_key / kTaskKeys;
      u32* semaphore = args.dq_semaphore + row / kBlockQ * kClusterSize + cluster_rank();
      u32 now;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(semaphore) : "memory");
      } while (now != order);
      mbarrier_arrive(pipelines.dq_order.full_barrier(tile));
      pipelines.dq_order.producer_acquire(++tile);
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(semaphore), "r"(order + 1) : "memory");
    }
  }
}

/// Line values of each tile, by one warp.
FOVEAL_DEVICE void evaluate_lines(const Sm90Args& args, const Pipelines& pipelines) {
  int round = -1;
  BackwardTask work;
  u32 tile = 0;
  while (work.next(round, args)) {
    bool partial;
    Lines before{nullptr};
    int head = 0, next_q = 0;  // that would continue the previous tile
    for (; work.next_tile(args, partial); ++tile) {
      pipelines.line_values.producer_acquire(tile);
      const Position base = work.base(args.attention);
      if (kConfig.stages == 1 || base.head != head || work.first_q() != next_q) before.data = nullptr;
      const Lines lines = pipelines.lines(tile);
      lines.fill(
          args.attention.score, before,
          [&](int column) { return position_at(args.attention, base, work.first_q() + column, work.first_kv()); },
          [&](int difference) { return position_on_diagonal(args.attention, base, work.first_q() - work.first_kv() + difference); });
      producer_commit(pipelines.line_values, tile);
      before = lines;
      head = base.head;
      next_q = work.first_q() - kBlockQ;
    }
  }
}

/// Sums staged terms of parameter gradients, by one of the collector warps.
FOVEAL_DEVICE void collect_staged(const Sm90Args& args, const Pipelines& pipelines, int number) {
  ReadCollector collector(args.attention, pipelines.read_stage(), number);
  int round = -1;
  BackwardTask work;
  u32 tile = 0;
  while (work.next(round, args)) {
    for (bool first = true;; first = false) {
      bool partial;
      const bool more = work.next_tile(args, partial);
      if (!first && !(more && collector.continues_walk(work.head_q(args.attention), work.first_q()))) collector.finish();
      if (!more) break;
      pipelines.staged.consumer_wait(tile);
      collector.collect(work.base(args.attention), work.first_q(), work.first_kv());
      consumer_release(pipelines.staged, tile++);
      collector.add_tile();
    }
  }
}

/// The first warpgroup. In deterministic mode the warp index is made warp-uniform for the compiler: otherwise values derived from the task,
/// in the consumer warpgroups too, end up in ordinary instead of uniform registers.
FOVEAL_DEVICE void run_helper_warps(const Sm90Args& args, const Pipelines& pipelines) {
  registers_decrease<kConfig.producer_registers>();
  const u32 warp = kConfig.reproducible ? uniform(warp_id()) : warp_id();
  if (warp == 0) {
    if (lane_id() == 0) produce(args, pipelines);
  } else if (warp == 1) {
    if constexpr (kHasLines) evaluate_lines(args, pipelines);
    if constexpr (kConfig.reproducible) {
      if (lane_id() == 0) order_dq_adds(args, pipelines);
    }
  } else if constexpr (kStagedReads > 0) {
    collect_staged(args, pipelines, static_cast<int>(warp) - 2);
  }
}

}  // namespace foveal::device
