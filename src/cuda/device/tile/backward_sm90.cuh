#pragma once
// What the backward kernels for Hopper share: shared memory, the walk of a task, the warps that load and help, and the arithmetic on scores. A CTA owns
// kBlockKv keys and values, and a task those of all CTAs of a cluster; scores are computed transposed, S^T = K Q^T, so that P^T and dS^T are already the
// A operands of dV += P^T dO and dK += dS^T Q.
//
// config.cuh: kPairStages. From the kernel: kConsumers, kBlockKv, kClusterSize; kPrefetchesLse: is lse loaded before the products that the scores wait for?
// kDqWarps: those that add to dQ; kReleases: arrivals of a warpgroup that give a stage of queries back; kKeyColumns, kKeyStep: columns of keys, and
// where chunks of them begin; kDsTiles: buffers of gradients of scores.
#include "philox.cuh"
#include "ptx/cluster.cuh"
#include "schedule/tasks.cuh"
#include "score/far_row.cuh"
#include "score/score.cuh"
#include "tile/collect_reads.cuh"
#include "tile/dq_sum.cuh"
#include "tile/fragment.cuh"
#include "tile/key_rows.cuh"
#include "tile/pair_tiles.cuh"
#include "tile/part.cuh"
#include "tile/read_tables.cuh"
#include "tile/store_fragment.cuh"
#include "tile/tanh_ahead.cuh"

namespace foveal::device {

constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kTaskKeys = kClusterSize * kBlockKv;
constexpr int kDimV = round_up(kHeadDimV, 16);
constexpr TileSource kSource = static_cast<TileSource>(kTileSource);
constexpr bool kMaskProgram = kSource == TileSource::list && kHasMask;
constexpr bool kSlopeEarly = kHasScore && (kSlopeOfScore || !kSumsTerms);  // d score_mod / d score is multiplied with the probability
using Walk = TileWalk<kSource, true>;
static_assert(kHelperRegisters + kConsumers * kConsumerRegisters <= 3 * 168, "setmaxnreg would deadlock: more than the launch allocates");
static_assert(!kReproducible || kSource != TileSource::list, "rows of keys that visit a tile of queries must be consecutive");
using QueryTile = SwizzledTile<kBlockQ>;
using KvTile = SwizzledTile<kBlockKv>;
using KeyTile = SwizzledTile<kBlockKv, kKeyStep>;
using Lines = LineTile<kBlockKv, kBlockQ>;
using Pairs = PairTiles<kBlockQ, kBlockKv>;

constexpr BackwardLayout kShared{{.block_q = kBlockQ,
                                  .block_kv = kBlockKv,
                                  .head_dim = kDim,
                                  .head_dim_v = kDimV,
                                  .stages = kStages,
                                  .key_chunks = chunk_count(kKeyColumns, kKeyStep),
                                  .peer_key_chunks = kClusterSize > 1 ? 2 : 0,
                                  .ds_tiles = kDsTiles,
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
  Pipeline<kStages> query, dout;  // with them come lse, and whether rows are far; delta
  Pipeline<kStages> line_values;
  Pipeline<1> exchange;  // of gradients of scores in a cluster
  Pairs pairs;
  FOVEAL_DEVICE explicit Pipelines(unsigned char* memory)
      : memory(memory),
        base(shared_address(memory)),
        key{base + kShared.barriers},
        value{key.address + Pipeline<1>::kBytes},
        staged{value.address + Pipeline<1>::kBytes},
        dq_order{staged.address + Pipeline<1>::kBytes},
        query{dq_order.address + Pipeline<1>::kBytes},
        dout{query.address + Pipeline<kStages>::kBytes},
        line_values{dout.address + Pipeline<kStages>::kBytes},
        exchange{line_values.address + Pipeline<kStages>::kBytes},
        pairs{base + kShared.pairs, {base + kShared.pair_barriers}} {}

  /// By all threads, before anything else.
  FOVEAL_DEVICE void init() const {
    if (threadIdx.x == 0) {
      key.init(1, arrivals_of_groups(kConsumers));
      value.init(1, arrivals_of_groups(kConsumers));
      query.init(1, kConsumers * kReleases);
      dout.init(1, kConsumers * kReleases);
      staged.init(arrivals_of_warps(4 * kConsumers), arrivals_of_warps(ReadCollector::kCollectors));
      line_values.init(arrivals_of_warps(1), arrivals_of_warps(4 * kConsumers));
      if constexpr (kPairTiles > 0) pairs.pipeline.init(1, arrivals_of_warps(4 * kConsumers));
      dq_order.init(1, arrivals_of_warps(kDqWarps));
      if constexpr (kClusterSize > 1) exchange.init(arrivals_of_warps(4), kClusterSize * arrivals_of_warps(4 * kConsumers));
      fence_mbarrier_init();
    }
    read_stage().clear();
    read_bins().clear();
    if constexpr (kClusterSize > 1) cluster_sync();
    __syncthreads();
  }

  FOVEAL_DEVICE KeyTile key_tile() const { return {base + kShared.key}; }
  FOVEAL_DEVICE KeyTile peer_key_tile() const { return {base + kShared.peer_key}; }  // columns of this CTA's parts of dQ
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

/// Number of the CTA in its cluster.
FOVEAL_DEVICE int cluster_rank() { return kClusterSize > 1 ? blockIdx.x % kClusterSize : 0; }

/// A task: a row of kTaskKeys keys of one kv head; it walks along the query tiles of each query head of the group.
struct BackwardTask {
  Task task;  // head: of kv
  Sequence sequence;
  Walk walk;
  int group_head;  // query head being walked, within the group

  FOVEAL_DEVICE int first_kv_of_task() const { return task.row * kTaskKeys; }
  FOVEAL_DEVICE int first_kv() const { return first_kv_of_task() + kBlockKv * cluster_rank(); }
  FOVEAL_DEVICE int head_q(const AttentionArgs& args) const { return task.head * args.group_size + group_head; }
  FOVEAL_DEVICE int first_q() const { return walk.tile * kBlockQ; }
  /// Of any pair, but for q and kv.
  FOVEAL_DEVICE Position base(const AttentionArgs& args) const { return {task.batch, head_q(args), 0, 0, sequence.len_q, sequence.len_kv}; }

  /// Of the tile.
  FOVEAL_DEVICE Position first_pair(const AttentionArgs& args) const {
    Position first = base(args);
    first.q = first_q() + static_cast<int>(args.q_offset);
    first.kv = first_kv() + static_cast<int>(args.kv_offset);
    return first;
  }

  FOVEAL_DEVICE bool next(int& round, const Sm90Args& args) {
    do {
      if (!task_at<kClusterSize>(++round, args.order, task)) return false;
      sequence = find_sequence<kVarlen, SeqlenIndex, kKeyRows, SeqlenKvIndex>(args.attention, task.batch);
    } while (kRaggedKv && first_kv_of_task() >= sequence.len_kv);
    group_head = -1;
    walk.stop();
    return true;
  }

  FOVEAL_DEVICE bool next_tile(const Sm90Args& args, bool& partial) {
    const TileRuns& runs = args.attention.runs_transposed;
    while (!walk.next(runs, sequence.len_q, kBlockQ, partial)) {
      if (++group_head == args.attention.group_size) return false;
      walk.start(args, runs, task.batch, head_q(args.attention), task.row, first_kv_of_task(),
                 min(first_kv_of_task() + kTaskKeys, sequence.len_kv), sequence.len_q, kBlockQ);
    }
    partial = partial || first_kv_of_task() + kTaskKeys > sequence.len_kv;
    return true;
  }
};

/// The CTA's keys; and of those of the other CTA of a cluster the columns that this one's parts of dQ need.
FOVEAL_DEVICE void load_keys_of_task(const Sm90Args& args, const Pipelines& pipelines, u32 use, int row, int head, int batch) {
  const u32 full = pipelines.key.full_barrier(use);
  mbarrier_arrive_expect_bytes(full, kShared.key_bytes + (kShared.query - kShared.peer_key));
  load_tile<kBlockKv, kKeyColumns, kKeyStep>(pipelines.key_tile().address, args.k, full, row, head, batch);
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
    const int batch = kVarlen ? 0 : work.task.batch;
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
      const i64 stat = stat_row<kVarlen>(args, work.sequence, head) + row_q;
      const bool follows = first && tasks > 0;  // a task whose keys are given back last, and values just before
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

/// Reproducible: the rows of keys add to dQ of a query tile one after the other, in their order. One thread waits for this row's turn ahead of the
/// warps that add, and passes it on when they have. A row waits only for tasks that were dealt before its own, so that with all CTAs running
/// somebody can always go on.
FOVEAL_DEVICE void order_dq_adds(const Sm90Args& args, const Pipelines& pipelines) {
  int round = -1;
  BackwardTask work;
  u32 tile = 0;
  bool partial;
  while (work.next(round, args)) {
    while (work.next_tile(args, partial)) {
      const i64 row = stat_row<kVarlen>(args, work.sequence, work.head_q(args.attention)) + work.first_q();
      const int first_key = kSource == TileSource::band ? max(work.first_q() + args.band_low, 0) : 0;  // that the tile's queries keep
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

/// What the score needs along the lines of each tile, by one warp.
FOVEAL_DEVICE void evaluate_lines(const Sm90Args& args, const Pipelines& pipelines) {
  int round = -1;
  BackwardTask work;
  u32 tile = 0;
  while (work.next(round, args)) {
    bool partial;
    Lines before{nullptr};
    int head = 0, next_q = 0;  // that continue the tile before
    for (; work.next_tile(args, partial); ++tile) {
      pipelines.line_values.producer_acquire(tile);
      const Position base = work.base(args.attention);
      if (kStages == 1 || base.head != head || work.first_q() != next_q) before.data = nullptr;
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

/// Sums up what consumers staged for gradients of parameters, by one of a few warps.
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

/// The first warpgroup. With turns its warps part by a number that the compiler knows to be the same in all lanes: else it keeps what follows from the task, in the
/// warpgroups that compute too, in ordinary registers instead of uniform ones.
FOVEAL_DEVICE void run_helper_warps(const Sm90Args& args, const Pipelines& pipelines) {
  registers_decrease<kHelperRegisters>();
  const u32 warp = kReproducible ? uniform(warp_id()) : warp_id();
  if (warp == 0) {
    if (lane_id() == 0) produce(args, pipelines);
  } else if (warp == 1) {
    if constexpr (kHasLines) evaluate_lines(args, pipelines);
    if constexpr (kReproducible) {
      if (lane_id() == 0) order_dq_adds(args, pipelines);
    }
  } else if constexpr (kStagedReads > 0) {
    collect_staged(args, pipelines, static_cast<int>(warp) - 2);
  }
}

/// Are registers left beside the accumulators?
constexpr bool kSpareRegisters = kBlockQ == 64 && kDim + kDimV <= 160;
/// Is there one for the number of the thread? Otherwise it is read in the middle of each tile.
constexpr bool kKeepsThread = kBlockQ == 64;

/// lse of the queries that the thread's scores belong to, if it is loaded ahead: loads behind products wait for these where the operands take all bandwidth
/// of shared memory.
struct LsePrefetch {
  float value[kPrefetchesLse ? kBlockQ / 4 : 1];
};

/// partial: some pair is not kept, or does not exist; far: some rows are far, and pairs may be as in a partial tile.
enum class TileKind { full, partial, far };

/// What one warpgroup does to the scores of its 64 keys.
struct BackwardWarpgroup {
  const Sm90Args& args;
  const Pipelines& pipelines;
  const int first_key;  // of the tile
  const int thread;
  const float exponent;  // of scores without a score_mod

  FOVEAL_DEVICE BackwardWarpgroup(const Sm90Args& args, const Pipelines& pipelines, int first_key)
      : args(args),
        pipelines(pipelines),
        first_key(first_key),
        thread(kKeepsThread ? keep_in_register(threadIdx.x % 128) : threadIdx.x % 128),
        exponent(args.scale * kLog2e) {}

  /// Position of the thread's first key in the sequence.
  FOVEAL_DEVICE int key_of(const BackwardTask& work) const { return work.first_kv() + first_key + fragment_first_row(thread); }

  /// The warp's place in a tile; `use` of the pipelines.
  FOVEAL_DEVICE WarpPairs warp_pairs(const BackwardTask& work, u32 use, const PairPrefetch& prefetched) const {
    const int row = fragment_first_row(thread), column = fragment_first_column(thread);
    return {
        args.attention, work.base(args.attention), work.first_q() + column, key_of(work), {pipelines.lines(use), first_key + row, column},
        prefetched,     pipelines.tables()};
  }

  /// What is the same for all pairs of a query head, found once a task; for the plain pass once, in the constructor.
  struct HeadConstants {
    int head;
    float exponent;           // scores in units to powers of two
    float gain, offset_unit;  // of a sum, to powers of two
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
  /// When the walk has gone on inside a task.
  FOVEAL_DEVICE void update_head_constants(HeadConstants& constants, const BackwardTask& work) const {
    if (kHasScore && work.head_q(args.attention) != constants.head) constants = head_constants(work);
  }

  /// S^T of a tile, to be waited for.
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

  /// Once the queries are there.
  FOVEAL_DEVICE void prefetch_lse(LsePrefetch& prefetch, u32 use) const {
#pragma unroll
    for (int i = 0; i < kBlockQ / 2; i += 4) {
      float two[2];
      load_pair(pipelines.lse(use) + 4 * (fragment_first_column(thread) + fragment_column(i)), two);
      prefetch.value[i / 2] = two[0];
      prefetch.value[i / 2 + 1] = two[1];
    }
  }

  /// What is read for each pair, before the scores are there.
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

  /// Once the queries are there; best asked while products are under way.
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

  /// Are the values of the warp's keys tame that factors of terms are made of? By whole warps, when these or the head are new.
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
  /// A tile whose factors may be infinite goes the way of partial ones, where each term is looked at. Once its lines are there.
  FOVEAL_DEVICE TileKind with_factors(TileKind kind, bool tame_keys, u32 use) const {
    bool tame = tame_keys;
    if constexpr (kChecksLines) tame = tame && pipelines.lines(use).tame();
    return kind == TileKind::full && !tame ? TileKind::partial : kind;
  }

  /// The early terms of a pair, as far as they are known: `start` makes them of its factors.
  template <int r, class Start>
  FOVEAL_DEVICE void start_terms(EarlyTerms& early, int i, const Score& raw, const Pair& at, Start&& start) const {
    if constexpr (is_early(r)) {
      const float factor =
          kEarlyFactors ? read_factor<r>(raw, at, args.attention.score) : read_factor_in_units<r>(raw, at, args.attention.score);
      early[early_before(r)][i] = start(factor);
    }
    if constexpr (r + 1 < kReads) start_terms<r + 1>(early, i, raw, at, start);
  }

  /// Raw products -> probabilities, packed for dv (after dropout), and in place; these times d score_mod / d score where that depends on the score or no
  /// gradients of parameters are wanted. `dropped`: one bit per register.
  FOVEAL_DEVICE void recompute_p(TileKind kind, float (&scores)[kBlockQ / 2], u32 (&p)[kBlockQ / 4], u32 (&dropped)[kBlockQ / 64],
                                 EarlyTerms& early, const HeadConstants& constants, const PairPrefetch& prefetched,
                                 const LsePrefetch& lse_prefetch, const BackwardTask& work, u32 use) const {
    if constexpr (kDropout) draw_dropout(dropped, prefetched, work, use);
    if (kind == TileKind::far) {
      recompute_p_far(scores, p, dropped, early, constants, prefetched, work, use);
    } else if (kind == TileKind::partial) {
      recompute_p_tile<true>(scores, p, dropped, early, constants, prefetched, lse_prefetch, work, use);
    } else {
      recompute_p_tile<false>(scores, p, dropped, early, constants, prefetched, lse_prefetch, work, use);
    }
  }

  /// Which pairs are dropped.
  FOVEAL_DEVICE void draw_dropout(u32 (&dropped)[kBlockQ / 64], const PairPrefetch& prefetched, const BackwardTask& work, u32 use) const {
    const AttentionArgs& attention = args.attention;
    const WarpPairs pairs = warp_pairs(work, use, prefetched);
    const DropoutRow dropout(attention.dropout, dropout_row(attention, pairs.base.batch, pairs.base.head));
#pragma unroll
    for (int word = 0; word < kBlockQ / 64; ++word) {
      dropped[word] = 0;
#pragma unroll 1
      for (int i = 0; i < 32; ++i) {
        const int q = pairs.first_q + fragment_column(32 * word + i) + static_cast<int>(attention.q_offset);
        const int kv = pairs.first_key + 8 * fragment_row(i) + static_cast<int>(attention.kv_offset);
        if (!dropout.keep(static_cast<u32>(q), static_cast<u32>(kv))) dropped[word] |= 1u << i;
      }
    }
  }

  /// Queries that the thread's two keys keep, as columns of its scores.
  struct KeptColumns {
    int low[2], high[2];
    FOVEAL_DEVICE bool keep(int r, int column) const { return column <= high[r] && (!Walk::kLimitLow || column >= low[r]); }
  };
  FOVEAL_DEVICE KeptColumns kept_columns(const WarpPairs& pairs, const BackwardTask& work) const {
    KeptColumns columns;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = pairs.first_key + 8 * r;
      columns.high[r] = key < work.sequence.len_kv ? work.sequence.len_q - 1 - pairs.first_q : -1;
      if constexpr (Walk::kLimitHigh) columns.high[r] = min(columns.high[r], key - args.band_low - pairs.first_q);
      if constexpr (Walk::kLimitLow) columns.low[r] = key - args.band_high - pairs.first_q;
    }
    return columns;
  }

  /// The same where rows are far: scores less the largest of their row. Rare, so that a text for one pair has to do, through memory.
  FOVEAL_DEVICE void recompute_p_far(float (&scores)[kBlockQ / 2], u32 (&p)[kBlockQ / 4], const u32 (&dropped)[kBlockQ / 64],
                                     EarlyTerms& early, const HeadConstants& constants, const PairPrefetch& prefetched,
                                     const BackwardTask& work, u32 use) const {
    constexpr int kCount = kBlockQ / 2;
    const AttentionArgs& attention = args.attention;
    float raws[kCount], kept[kCount];
    EarlyTerms terms;
    PairPrefetch loaded;
    TiledValues tiled[kCount / 8];
    u32 dropped_words[kBlockQ / 64];
    const TiledView<true, kBlockQ, kBlockKv> tiles(pipelines.pairs, use, first_key + 16 * (thread / kWarp), work.first_pair(args.attention),
                                                   args.attention.score);
#pragma unroll
    for (int i = 0; i < kCount; ++i) raws[i] = scores[i];
#pragma unroll
    for (int i = 0; i < kPrefetched; ++i) loaded[i] = prefetched[i];
#pragma unroll
    for (int n = 0; n < kCount / 8; ++n) tiled[n] = tiles.load(n);
#pragma unroll
    for (int word = 0; word < kBlockQ / 64; ++word) dropped_words[word] = kDropout ? dropped[word] : 0;
    const WarpPairs pairs = warp_pairs(work, use, loaded);
    const KeptColumns columns = kept_columns(pairs, work);
    const float* largest =
        static_cast<const float*>(attention.largest.data) + stat_row<kVarlen>(args, work.sequence, work.head_q(attention)) + pairs.first_q;
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {
      const int column = fragment_column(i);
      Pair at = pairs.pair(i);
      tiled[i / 8].put_into(at, i);
      const Score raw{raws[i], args.scale};
      if constexpr (kTanhAhead) at.tanh = fv_tanh(raw.raw, constants.tanh_factor);
      const float score = unfused_difference(score_in_units(raw, at, attention.score), largest[column]);
      float probability =
          exp2_real(fmaf(score, constants.exponent, -load_float(pipelines.lse(use) + 4 * (fragment_first_column(thread) + column))));
      bool keep = columns.keep(fragment_row(i), column);
      if constexpr (kMaskProgram) keep = mask_keep(at, attention.score) & keep;
      if (!keep) probability = 0;
      const auto times = [&](float factor) { return probability == 0.0f ? 0.0f : probability * factor; };
      raws[i] = kSlopeEarly ? times(slope_in_units(raw, at, attention.score)) : probability;
      const auto start = [&](float factor) { return !kEarlyFactors ? times(factor) : probability == 0.0f ? 0.0f : factor; };
      if constexpr (kEarlyReads > 0) start_terms<0>(terms, i, raw, at, start);
      kept[i] = probability;
      if constexpr (kDropout) kept[i] = dropped_words[i / 32] >> i % 32 & 1 ? 0.0f : probability * attention.dropout.keep_scale;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      scores[i] = raws[i];
#pragma unroll
      for (int read = 0; read < kEarlyReads; ++read) early[read][i] = terms[read][i];
    }
#pragma unroll
    for (int i = 0; i < kCount; i += 2) p[i / 2] = pack(Element{}, kept[i], kept[i + 1]);
    if constexpr (kPairTiles > 0) consumer_release_loaded(pipelines.pairs.pipeline, use);
  }

  template <bool partial>
  FOVEAL_DEVICE void recompute_p_tile(float (&scores)[kBlockQ / 2], u32 (&p)[kBlockQ / 4], const u32 (&dropped)[kBlockQ / 64],
                                      EarlyTerms& early, const HeadConstants& constants, const PairPrefetch& prefetched,
                                      const LsePrefetch& lse_prefetch, const BackwardTask& work, u32 use) const {
    if constexpr (!kTanhAhead)
      return recompute_p_tile<partial>(scores, AnyTanhAhead{}, p, dropped, early, constants, prefetched, lse_prefetch, work, use);
    const float factor = constants.tanh_factor, most = kSpareRegisters ? largest_square(scores) : square_of_largest(scores);
    if (!partial && all_squares_small(most, TanhPolynomial<3>::limit(factor))) {
      recompute_p_tile<partial>(scores, TanhPolynomial<3>(factor, 1), p, dropped, early, constants, prefetched, lse_prefetch, work, use);
    } else if (all_squares_small(most, TanhPolynomial<5>::limit(factor))) {
      recompute_p_tile<partial>(scores, TanhPolynomial<5>(factor, 1), p, dropped, early, constants, prefetched, lse_prefetch, work, use);
    } else {
      recompute_p_tile<partial>(scores, AnyTanhAhead{factor, 1}, p, dropped, early, constants, prefetched, lse_prefetch, work, use);
    }
  }
  template <bool partial, class TanhAhead>
  FOVEAL_DEVICE void recompute_p_tile(float (&scores)[kBlockQ / 2], const TanhAhead& tanh_ahead, u32 (&p)[kBlockQ / 4],
                                      const u32 (&dropped)[kBlockQ / 64], EarlyTerms& early, const HeadConstants& constants,
                                      const PairPrefetch& prefetched, const LsePrefetch& lse_prefetch, const BackwardTask& work,
                                      u32 use) const {
    const AttentionArgs& attention = args.attention;
    const float scale = args.scale;
    const WarpPairs pairs = warp_pairs(work, use, prefetched);
    const TiledView<true, kBlockQ, kBlockKv> tiles(pipelines.pairs, use, first_key + 16 * (thread / kWarp), work.first_pair(args.attention),
                                                   args.attention.score);
    TiledValues tiled;
    const u32 lse = pipelines.lse(use) + 4 * fragment_first_column(thread);
    const KeptColumns columns = kept_columns(pairs, work);
#pragma unroll
    for (int i = 0; i < kBlockQ / 2; i += 4) {
      float lse2[2], kept[4], tanh[4];
      if (i % 8 == 0) tiled = tiles.load(i / 8);
      if constexpr (kPrefetchesLse) {
        lse2[0] = lse_prefetch.value[i / 2];
        lse2[1] = lse_prefetch.value[i / 2 + 1];
      } else {
        load_pair(lse + 4 * fragment_column(i), lse2);
      }
      if constexpr (kTanhAhead) tanh_ahead.evaluate(tanh, scores, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int r = fragment_row(j), column = fragment_column(i + j);
        Pair at = pairs.template pair<partial>(i + j);
        tiled.put_into(at, i + j);
        at.tanh = tanh[j];
        const Score raw{scores[i + j], scale};
        float logarithm;  // of the probability
        if constexpr (kSumScore) {
          logarithm =
              fmaf(raw.raw, constants.gain, fmaf(offset_in_units<0>(raw, at, attention.score), constants.offset_unit, -lse2[j & 1]));
        } else {
          logarithm = fmaf(score_in_units(raw, at, attention.score), constants.exponent, -lse2[j & 1]);
        }
        kept[j] = exp2_real(logarithm);
        if constexpr (partial) {
          bool keep = columns.keep(r, column);
          if constexpr (kMaskProgram) keep = mask_keep(at, attention.score) & keep;
          kept[j] = keep ? kept[j] : 0.0f;
        }
        // what is not kept may hold NaN
        const auto times = [&](float factor) { return partial && kept[j] == 0.0f ? 0.0f : kept[j] * factor; };
        scores[i + j] = kSlopeEarly ? times(slope_in_units(raw, at, attention.score)) : kept[j];
        const auto start = [&](float factor) { return !kEarlyFactors ? times(factor) : partial && kept[j] == 0.0f ? 0.0f : factor; };
        if constexpr (kEarlyReads > 0) start_terms<0>(early, i + j, raw, at, start);
        if constexpr (kDropout) {
          kept[j] = dropped[(i + j) / 32] >> (i + j) % 32 & 1 ? 0.0f : kept[j] * attention.dropout.keep_scale;
        }
      }
      p[i / 2] = pack(Element{}, kept[0], kept[1]);
      p[i / 2 + 1] = pack(Element{}, kept[2], kept[3]);
    }
    if constexpr (kPairTiles > 0) consumer_release_loaded(pipelines.pairs.pipeline, use);
  }

  /// dS^T = P (dP^T - delta), packed. With gradients of parameters, dp becomes that of the modified scores, or what early terms leave of it, and their sums are added.
  template <bool partial>
  FOVEAL_DEVICE void compute_ds(float (&p)[kBlockQ / 2], float (&dp)[kBlockQ / 2], const u32 (&dropped)[kBlockQ / 64],
                                const EarlyTerms& early, ReadSums& sums, const PairPrefetch& prefetched, u32 (&packed)[kBlockQ / 4],
                                const BackwardTask& work, u32 use) const {
    const WarpPairs pairs = warp_pairs(work, use, prefetched);
    const u32 delta = pipelines.delta(use) + 4 * fragment_first_column(thread);
    TileSums tile_sums;
    if constexpr (kFoldsRows) pipelines.staged.producer_acquire(use);
#pragma unroll
    for (int i = 0; i < kBlockQ / 2; i += 4) {
      float d[2];
      load_pair(delta + 4 * fragment_column(i), d);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float grad = dp[i + j];
        if constexpr (kDropout) grad = dropped[(i + j) / 32] >> (i + j) % 32 & 1 ? 0.0f : grad * args.attention.dropout.keep_scale;
        const float difference = grad - d[j & 1];
        bool kept = !partial || p[i + j] != 0.0f;  // what is not kept may hold NaN
        p[i + j] = kept ? p[i + j] * difference : 0.0f;
        if constexpr (kSumsTerms && kSlopeEarly) {
#pragma unroll
          for (int read = 0; read < kEarlyReads; ++read) kept = kept || early[read][i + j] != 0.0f;
          dp[i + j] = kept ? difference : 0.0f;
        }
        if constexpr (kSumsTerms && !kSlopeEarly) {
          dp[i + j] = p[i + j];
          const float sloped = p[i + j] * slope_in_units(0.0f, pairs.template pair<partial>(i + j), args.attention.score);
          p[i + j] = partial && p[i + j] == 0.0f ? 0.0f : sloped;
        }
        if constexpr (kSumsTerms) pairs.template sum_up<partial>(dp[i + j], early, i + j, tile_sums, sums);
      }
      if constexpr (kFoldsRows) pairs.template fold_rows<partial>(dp, early, i, pipelines.read_stage());
      packed[i / 2] = pack(Element{}, p[i], p[i + 1]);
      packed[i / 2 + 1] = pack(Element{}, p[i + 2], p[i + 3]);
    }
    if constexpr (kSumsTerms) tile_sums.add_to(sums);
    if constexpr (kFoldsRows) producer_commit(pipelines.staged, use);
  }

  /// Terms of a tile for gradients of parameters, to those who sum them up.
  FOVEAL_DEVICE void collect_terms(const WarpPairs& pairs, const float (&terms)[kBlockQ / 2], const EarlyTerms& early, ReadSums& sums,
                                   u32 tile) const {
    pairs.add_to_bins(terms, early, sums, pipelines.read_bins(), tile);
    if constexpr (kStagedReads > 0 && !kFoldsRows) pipelines.staged.producer_acquire(tile);
    pairs.collect<0>(terms, early, pipelines.read_stage());
    if constexpr (kStagedReads > 0 && !kFoldsRows) producer_commit(pipelines.staged, tile);
  }

  /// Adds a part of dQ to the sum of a query tile, from its element `first` on: four registers by four registers, thread after thread.
  template <int count>
  FOVEAL_DEVICE void add_dq(float* sum, int first, const float (&dq)[count]) const {
    float* to = sum + first + 4 * thread;
#pragma unroll
    for (int i = 0; i < count; i += 4) {
      asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + i * 128), "f"(dq[i]), "f"(dq[i + 1]),
                   "f"(dq[i + 2]), "f"(dq[i + 3])
                   : "memory");
    }
  }

  /// The sum of the query tile that a task stands at.
  FOVEAL_DEVICE float* dq_sum(const BackwardTask& work) const {
    return args.dq_sum + (stat_row<kVarlen>(args, work.sequence, work.head_q(args.attention)) + work.first_q()) * kSumColumns;
  }

  /// Of any pair of the task, when its walk has ended.
  FOVEAL_DEVICE Position base_of_group(const BackwardTask& work) const {
    Position base = work.base(args.attention);
    base.head = work.task.head * args.attention.group_size;
    return base;
  }

  /// Gradients of parameters that follow from dk, while the keys are there.
  FOVEAL_DEVICE void add_gradients_of_dk(const BackwardTask& work, const float (&dk)[kDim / 2]) const {
    if constexpr (kCollects && any_follows_from_dk(0)) {
      float sum[2] = {};                                   // of the thread's two keys
      const auto add = [](float dk, u32 key, float sum) {  // a key that nobody keeps may hold NaN
        return dk == 0 ? sum : fmaf(dk, to_real(Element{static_cast<u16>(key)}), sum);
      };
#pragma unroll
      for (int i = 0; i < kDim / 2; i += 2) {
        const int row = first_key + fragment_first_row(thread) + 8 * fragment_row(i);
        const u32 two = load_word(pipelines.key_tile().block_of_row(row, fragment_column(i)) + 2 * fragment_first_column(thread));
        float& of_key = sum[fragment_row(i)];
        of_key = add(dk[i], two, add(dk[i + 1], two >> 16, of_key));
      }
      const auto exists = [&](int row) { return key_of(work) + 8 * row < work.sequence.len_kv; };
      add_reads_of_dk(args.attention, base_of_group(work), (exists(0) ? sum[0] : 0.0f) + (exists(1) ? sum[1] : 0.0f));
    }
  }

  FOVEAL_DEVICE void write_dk(const BackwardTask& work, float (&dk)[kDim / 2]) const {
    const float scale = args.scale;
    if constexpr (kHasScore) {
      const Position base = base_of_group(work);
      const float unit = slope_unit({1, scale}, base, args.attention.score);
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) dk[i] = apply_unit(dk[i], unit);
    }
    write_rows<kHeadDim>(args.attention.dk, work, dk, scale);
  }

  template <int columns, int count>
  FOVEAL_DEVICE void write_rows(const Tensor& tensor, const BackwardTask& work, const float (&acc)[count], float factor) const {
    if (tensor.data == nullptr) return;
    const int key = key_of(work);
    if constexpr (kPart) {
      float* rows = static_cast<float*>(tensor.data) + work.task.batch * tensor.batch + work.task.head * tensor.head;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = key + 8 * r;
        add_row(rows + static_cast<i64>(row) * tensor.seq, acc, r, factor, args.attention.part.adds_to_kv ? 1.0f : 0.0f,
                row < work.sequence.len_kv ? columns : 0, thread % 32);
      }
      return;
    }
    if constexpr (kKeys == KeyRows::gathered) {
      float* rows = static_cast<float*>(tensor.data) + work.task.head * tensor.head + work.sequence.first_kv * tensor.seq;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = key + 8 * r;
        store_row(rows + static_cast<i64>(row) * tensor.seq, acc, r, factor, row < work.sequence.len_kv ? columns : 0, thread % 32);
      }
      return;
    }
    u16* base = static_cast<u16*>(tensor.data) + work.task.batch * tensor.batch + work.task.head * tensor.head;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = key + 8 * r;
      store_row<Element>(base + (work.sequence.first_kv + row) * tensor.seq, acc, r, factor, row < work.sequence.len_kv ? columns : 0,
                         thread % 32);
    }
  }
};

/// A kernel whose warpgroups beside the first all do the same.
template <class Group>
FOVEAL_DEVICE void run_cta(const Sm90Args& args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Pipelines pipelines(shared);
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  pipelines.init();
  if (warp_group == 0) {
    run_helper_warps(args, pipelines);
  } else {
    registers_increase<kConsumerRegisters>();
    Group(args, pipelines, warp_group - 1).run();
  }
}

}  // namespace foveal::device
