#pragma once
// Shared memory, pipelines and tasks of the backward kernels for Hopper. A CTA owns kBlockKv keys, a task those of all CTAs of a cluster.
// Scores are computed transposed, S^T = K Q^T, so that P^T and dS^T are already in registers as A operands of dV += P^T dO and dK += dS^T
// Q.
//
// config.cuh: kProblem, kConfig (a BackwardConfig).
#include "ptx/cluster.cuh"
#include "schedule/tasks.cuh"
#include "score/score.cuh"
#include "tile/backward_family.cuh"
#include "tile/key_rows.cuh"
#include "tile/pair_tiles.cuh"
#include "tile/read_collector.cuh"
#include "tile/read_tables.cuh"

namespace foveal::device {

constexpr int kDimV = round_up(kProblem.head_dim_v, 16);
constexpr TileSource kSource = kConfig.tile_source;
constexpr bool kMaskProgram = kSource == TileSource::list && kHasMask;
constexpr bool kSlopeEarly = kHasScore && (kSlopeOfScore || !kSumsTerms);  // multiply d score_mod / d score into P at once
using Walk = TileWalk<kSource, true>;
static_assert(kConfig.producer_registers + kConsumers * kConfig.consumer_registers() <= 3 * 168,
              "setmaxnreg would deadlock: more than the launch allocates");
static_assert(!kConfig.reproducible || kSource != TileSource::list, "rows of keys that visit a tile of queries must be consecutive");
using QueryTile = SwizzledTile<kBlockQ>;
using KvTile = SwizzledTile<kBlockKv>;
using KeyTile = SwizzledTile<kBlockKv, kKeyStep>;
using Lines = LineTile<kBlockKv, kBlockQ>;
using Pairs = PairTiles<kBlockQ, kBlockKv, kConfig.pair_stages>;

constexpr BackwardLayout kShared{{.block_q = kBlockQ,
                                  .block_kv = kBlockKv,
                                  .head_dim = kDim,
                                  .head_dim_v = kDimV,
                                  .stages = kConfig.stages,
                                  .key_chunks = kFamily.key_chunks(kDqSum),
                                  .peer_key_chunks = kFamily.peer_key_chunks(),
                                  .ds_tiles = kFamily.ds_tiles(),
                                  .pairs = Pairs::kShape,
                                  .line_floats = Lines::kFloats,
                                  .read_stage_bytes = ReadStage::kBytes,
                                  .read_bin_bytes = ReadBins::kBytes,
                                  .table_bytes = ReadTables::kBytes}};
static_assert(kShared.bytes == kSharedBytes, "the host set aside another size");

struct Pipelines {
  unsigned char* memory;
  u32 base;
  Pipeline<1> key, value, staged, dq_order;
  Pipeline<kConfig.stages> query, dout;  // with lse and far flags; with delta
  Pipeline<kConfig.stages> line_values;
  Pipeline<1> exchange;  // of dS within a cluster
  Pairs pairs;
  FOVEAL_DEVICE explicit Pipelines(unsigned char* memory)
      : memory(memory),
        base(shared_address(memory)),
        key{base + kShared.barriers},
        value{key.address + Pipeline<1>::kBytes},
        staged{value.address + Pipeline<1>::kBytes},
        dq_order{staged.address + Pipeline<1>::kBytes},
        query{dq_order.address + Pipeline<1>::kBytes},
        dout{query.address + Pipeline<kConfig.stages>::kBytes},
        line_values{dout.address + Pipeline<kConfig.stages>::kBytes},
        exchange{line_values.address + Pipeline<kConfig.stages>::kBytes},
        pairs{base + kShared.pairs, {base + kShared.pair_barriers}} {}

  /// By all threads, before anything else.
  FOVEAL_DEVICE void init() const {
    if (threadIdx.x == 0) {
      key.init(1, arrivals_of_groups(kConsumers));
      value.init(1, arrivals_of_groups(kConsumers));
      constexpr u32 kReleases = kFamily.releases_by_warps ? arrivals_of_warps(4 * kConsumers) : arrivals_of_groups(kConsumers);
      query.init(1, kReleases);
      dout.init(1, kReleases);
      staged.init(arrivals_of_warps(4 * kConsumers), arrivals_of_warps(ReadCollector::kCollectors));
      line_values.init(arrivals_of_warps(1), arrivals_of_warps(4 * kConsumers));
      if constexpr (kPairTiles > 0) pairs.pipeline.init(1, arrivals_of_warps(4 * kConsumers));
      dq_order.init(1, arrivals_of_warps(kFamily.dq_warps()));
      if constexpr (kClusterSize > 1) exchange.init(arrivals_of_warps(4), kClusterSize * arrivals_of_warps(4 * kConsumers));
      fence_mbarrier_init();
    }
    read_stage().clear();
    read_bins().clear();
    if constexpr (kClusterSize > 1) cluster_sync();
    __syncthreads();
  }

  FOVEAL_DEVICE KeyTile key_tile() const { return {base + kShared.key}; }
  FOVEAL_DEVICE KeyTile peer_key_tile() const { return {base + kShared.peer_key}; }  // the columns for this CTA's part of dQ
  FOVEAL_DEVICE KvTile value_tile() const { return {base + kShared.value}; }
  FOVEAL_DEVICE QueryTile query_tile(u32 use) const { return {base + kShared.query + query.index(use) * kShared.query_bytes}; }
  FOVEAL_DEVICE QueryTile dout_tile(u32 use) const { return {base + kShared.dout + query.index(use) * kShared.dout_bytes}; }
  FOVEAL_DEVICE KvTile ds_tile(u32 use) const { return {base + kShared.ds + use % 2 * kShared.ds_bytes}; }
  FOVEAL_DEVICE Lines lines(u32 use) const {
    return {reinterpret_cast<float*>(memory + kShared.lines) + line_values.index(use) * Lines::kFloats};
  }
  FOVEAL_DEVICE ReadStage read_stage() const { return {reinterpret_cast<float*>(memory + kShared.read_stage)}; }
  FOVEAL_DEVICE ReadTables tables() const { return {base + kShared.table}; }
  FOVEAL_DEVICE ReadBins read_bins() const { return {base + kShared.read_bins}; }
  FOVEAL_DEVICE u32 lse(u32 use) const { return base + kShared.lse + query.index(use) * kShared.stat_bytes; }
  FOVEAL_DEVICE u32 far(u32 use) const { return base + kShared.far + query.index(use) * kShared.far_bytes; }
  FOVEAL_DEVICE u32 delta(u32 use) const { return base + kShared.delta + query.index(use) * kShared.stat_bytes; }
};

/// Rank of the CTA in its cluster.
FOVEAL_DEVICE int cluster_rank() { return kClusterSize > 1 ? blockIdx.x % kClusterSize : 0; }

/// A task: a block of kTaskKeys keys of one kv head; it visits the query tiles of each query head of the group, or of its share of them.
struct BackwardTask {
  Task task;  // head: kv head
  Sequence sequence;
  Walk walk;
  int group_head, group_end;  // query heads within the group: the current one, and the end of the task's

  FOVEAL_DEVICE int first_kv_of_task() const { return task.row * kTaskKeys; }
  FOVEAL_DEVICE int first_kv() const { return first_kv_of_task() + kBlockKv * cluster_rank(); }
  FOVEAL_DEVICE int head_q(const AttentionArgs& args) const { return task.head * args.group_size + group_head; }
  FOVEAL_DEVICE int first_q() const { return walk.tile * kBlockQ; }
  /// Position of any pair, without q and kv.
  FOVEAL_DEVICE Position base(const AttentionArgs& args) const { return {task.batch, head_q(args), 0, 0, sequence.len_q, sequence.len_kv}; }

  /// First pair of the tile.
  FOVEAL_DEVICE Position first_pair(const AttentionArgs& args) const {
    Position first = base(args);
    first.q = first_q() + static_cast<int>(args.q_offset);
    first.kv = first_kv() + static_cast<int>(args.kv_offset);
    return first;
  }

  FOVEAL_DEVICE bool next(int& round, const Sm90Args& args) {
    do {
      if (!task_at<kClusterSize>(++round, args.order, task)) return false;
      sequence = find_sequence(args.attention, task.batch);
    } while (kRaggedKv && first_kv_of_task() >= sequence.len_kv);
    group_end = args.attention.group_size;
    group_head = -1;
    if constexpr (kConfig.splits_groups) {
      const int head = divide(task.head, args.parts.group_tasks), heads = divide(args.attention.group_size, args.parts.group_tasks);
      group_end = (task.head - head * args.parts.group_tasks.value + 1) * heads;
      group_head = group_end - heads - 1;
      task.head = head;
    }
    walk.stop();
    return true;
  }

  template <bool by_warp = false>
  FOVEAL_DEVICE bool next_tile(const Sm90Args& args, bool& partial) {
    const TileRuns& runs = args.attention.runs_transposed;
    while (!walk.template next<by_warp>(runs, sequence.len_q, kBlockQ, partial)) {
      if (++group_head == group_end) return false;
      walk.start(args, runs, task.batch, head_q(args.attention), task.row, first_kv_of_task(),
                 min(first_kv_of_task() + kTaskKeys, sequence.len_kv), sequence.len_q, kBlockQ);
    }
    partial = partial || first_kv_of_task() + kTaskKeys > sequence.len_kv;
    return true;
  }
};

}  // namespace foveal::device
