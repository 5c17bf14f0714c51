#pragma once
// Shared memory, pipelines, tasks and loads of kernels/rows_sm90.cuh.
#include "layout/sm90.cuh"
#include "ptx/mbarrier.cuh"
#include "schedule/tasks.cuh"
#include "score/score.cuh"
#include "sm90_config.cuh"
#include "tile/tma_tile.cuh"

namespace foveal::device {

constexpr int kBlockQ = kConfig.block_q(), kBlockKv = kConfig.block_kv, kThreads = kConfig.threads();
constexpr int kDim = round_up(kProblem.head_dim, 16);
constexpr int kDimV = round_up(kProblem.head_dim_v, 16);
constexpr int kCount = kBlockKv / 2;  // scores of a thread
constexpr TileSource kSource = kConfig.tile_source;
constexpr bool kMaskProgram = kSource == TileSource::list && kHasMask;
using Walk = TileWalk<kSource, false>;
using QueryTile = SwizzledTile<kBlockQ>;
using KvTile = SwizzledTile<kBlockKv>;

constexpr int bin_words(int n) { return row_bin_words(kRowRead[n].entries, kRowRead[n].any ? RowBins::any : RowBins::distinct); }
constexpr int bin_words_before(int end) {
  int words = 0;
  for (int n = 0; n < end; ++n) words += bin_words(n);
  return words;
}
constexpr bool any_transposed(int n) { return n < kRowReads && (kRowRead[n].any || any_transposed(n + 1)); }
constexpr bool in_registers(int n) { return kRowRead[n].repeats && kRowRead[n].run < 16; }  // n: index of a row read
constexpr int in_registers_before(int end) {
  int count = 0;
  for (int n = 0; n < end; ++n) count += in_registers(n);
  return count;
}
constexpr int kHeldReads = in_registers_before(kRowReads), kHeldSlots = kHeldReads > 0 ? kHeldReads : 1;

constexpr RowsLayout kShared{{.block_q = kBlockQ,
                              .block_kv = kBlockKv,
                              .head_dim = kDim,
                              .head_dim_v = kDimV,
                              .stages = kConfig.stages,
                              .bin_words = bin_words_before(kRowReads),
                              .transposed = any_transposed(0)}};
static_assert(kShared.bytes == kSharedBytes, "the host set aside another size");

struct Pipelines {
  u32 base;
  Pipeline<1> query;  // with dO
  Pipeline<kConfig.stages> stage;
  FOVEAL_DEVICE explicit Pipelines(u32 address)
      : base(address), query{address + kShared.barriers}, stage{address + kShared.barriers + Pipeline<1>::kBytes} {}

  /// By all threads, before anything else.
  FOVEAL_DEVICE void init() const {
    if (threadIdx.x == 0) {
      query.init(1, arrivals_of_warps(4 * kConfig.consumers));
      stage.init(1, arrivals_of_warps(4 * kConfig.consumers));
      fence_mbarrier_init();
    }
    for (int i = threadIdx.x; i < kBlockQ * bin_words_before(kRowReads); i += kThreads) store_word(base + kShared.bins + 4 * i, 0);
    __syncthreads();
  }

  FOVEAL_DEVICE u32 at(u32 use, int piece) const { return base + kShared.stage + stage.index(use) * kShared.stage_bytes + piece; }
  /// The bins of one row of the tile.
  template <int n>
  FOVEAL_DEVICE u32 bins(int row) const {
    return base + kShared.bins + 4 * (kBlockQ * bin_words_before(n) + row * bin_words(n));
  }
  /// Where a warp transposes terms, for lanes that own a row.
  FOVEAL_DEVICE u32 transposed(int row) const { return base + kShared.transposed + 4 * row * RowsLayout::transposed_pitch(kBlockKv); }
};

/// A row of tiles of one query head.
struct RowsTask {
  Task task;
  Walk walk;

  FOVEAL_DEVICE int first_q() const { return task.row * kBlockQ; }
  FOVEAL_DEVICE int first_key() const { return walk.tile * kBlockKv; }

  FOVEAL_DEVICE bool next(int& round, const Sm90Args& args) {
    if (!task_at(++round, args.order, task)) return false;
    const AttentionArgs& attention = args.attention;
    walk.start(args, attention.runs, task.batch, task.head, task.row, first_q(), min(first_q() + kBlockQ, attention.seqlen_q),
               attention.seqlen_kv, kBlockKv);
    return true;
  }
  FOVEAL_DEVICE bool next_tile(const Sm90Args& args, bool& partial) {
    if (!walk.next(args.attention.runs, args.attention.seqlen_kv, kBlockKv, partial)) return false;
    partial = partial || first_q() + kBlockQ > args.attention.seqlen_q;
    return true;
  }
};

FOVEAL_DEVICE void produce(const Sm90Args& args, const Pipelines& pipelines) {
  tma_prefetch_map(args.q);
  tma_prefetch_map(args.dout);
  tma_prefetch_map(args.k);
  tma_prefetch_map(args.v);
  int round = -1;
  u32 tile = 0, tasks = 0;
  RowsTask work;
  while (work.next(round, args)) {
    bool partial;
    for (bool first = true; work.next_tile(args, partial); first = false) {
      const int head = work.task.head, batch = work.task.batch, kv_head = head / args.attention.group_size;
      if (first) {
        const u32 full = pipelines.query.full_barrier(tasks);
        pipelines.query.producer_acquire(tasks++);
        mbarrier_arrive_expect_bytes(full, kShared.query_bytes);
        load_tile<kBlockQ, kDim>(pipelines.base + kShared.query, args.q, full, work.first_q(), head, batch);
        load_tile<kBlockQ, kDimV>(pipelines.base + kShared.dout, args.dout, full, work.first_q(), head, batch);
      }
      const u32 full = pipelines.stage.full_barrier(tile);
      pipelines.stage.producer_acquire(tile);
      mbarrier_arrive_expect_bytes(full, kShared.stage_bytes);
      load_tile<kBlockKv, kDim>(pipelines.at(tile, kShared.key), args.k, full, work.first_key(), kv_head, batch);
      load_tile<kBlockKv, kDimV>(pipelines.at(tile, kShared.value), args.v, full, work.first_key(), kv_head, batch);
      ++tile;
    }
  }
}

}  // namespace foveal::device
