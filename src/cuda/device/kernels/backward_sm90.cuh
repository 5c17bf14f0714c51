// Fused attention backward for Hopper, 16-bit types, head dims up to 128: a CTA owns 128 keys and values, walks along the query tiles and keeps dk
// and dv in registers; its contributions to dq are added to an fp32 buffer in global memory.
//
// Two warpgroups of 64 keys each. Scores are computed transposed, S^T = K Q^T, so that P^T and dS^T are already the A operands of
// dV += P^T dO and dK += dS^T Q; only dQ = dS K needs all keys, so dS^T goes through shared memory (two buffers, one barrier a tile). A tile's dQ is added
// while the next tile's scores are computed.
//
// Configuration, constexpr, above this text:
//   bool kBf16; int kHeadDim, kHeadDimV (multiples of 8), kBlockQ (64, or 128 for head dims up to 64), kStages; bool kVarlen, kScoreMod, kMaskProgram;
//   int kTileSource (a TileSource); the score program: struct ScoreArgs, score_forward, score_backward, mask_keep.
#include "schedule/tile_walk.cuh"
#include "softmax/online.cuh"
#include "tile/load.cuh"
#include "tile/store.cuh"

constexpr int kConsumers = 2;
constexpr int kBlockKv = 64 * kConsumers;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kDim = round_up(kHeadDim, 16);
constexpr int kDimV = round_up(kHeadDimV, 16);
// A warpgroup computes 64 rows of dq: all of them and half the columns when kBlockQ is 64, else half the rows and all columns.
constexpr bool kSplitColumns = kBlockQ == 64;
constexpr int kSumColumns = kChunkColumns * chunk_count(kDim);
constexpr int kDqColumns = kSplitColumns ? kSumColumns / 2 : kSumColumns;
static_assert(kSplitColumns ? chunk_count(kDim) <= 2 : chunk_count(kDim) == 1);

constexpr TileSource kSource = static_cast<TileSource>(kTileSource);
using Walk = TileWalk<kSource, true>;
using QueryTile = SharedTile<kBlockQ>;
using KvTile = SharedTile<kBlockKv>;

struct SharedLayout {
  static constexpr int kKeyBytes = tile_bytes(kBlockKv, kDim);
  static constexpr int kValueBytes = tile_bytes(kBlockKv, kDimV);
  static constexpr int kQueryBytes = tile_bytes(kBlockQ, kDim);
  static constexpr int kGradOutBytes = tile_bytes(kBlockQ, kDimV);
  static constexpr int kGradScoreBytes = tile_bytes(kBlockKv, kBlockQ);
  static constexpr int kStatBytes = 4 * kBlockQ;
  static constexpr int kKey = 0;
  static constexpr int kValue = kKey + kKeyBytes;
  static constexpr int kQuery = kValue + kValueBytes;
  static constexpr int kGradOut = kQuery + kStages * kQueryBytes;
  static constexpr int kGradScore = kGradOut + kStages * kGradOutBytes;
  static constexpr int kLse = kGradScore + 2 * kGradScoreBytes;
  static constexpr int kDelta = kLse + kStages * kStatBytes;
  static constexpr int kBarriers = kDelta + kStages * kStatBytes;
  static constexpr int kBytes = kBarriers + 2 * RingBarriers<1>::kBytes + 2 * RingBarriers<kStages>::kBytes;
};

struct Rings {
  u32 base;
  RingBarriers<1> key, value;
  RingBarriers<kStages> query, grad_out;  // with them come lse and delta
  FOVEAL_DEVICE explicit Rings(u32 address)
      : base(address),
        key{address + SharedLayout::kBarriers},
        value{key.address + RingBarriers<1>::kBytes},
        query{value.address + RingBarriers<1>::kBytes},
        grad_out{query.address + RingBarriers<kStages>::kBytes} {}
  FOVEAL_DEVICE KvTile key_tile() const { return {base + SharedLayout::kKey}; }
  FOVEAL_DEVICE KvTile value_tile() const { return {base + SharedLayout::kValue}; }
  FOVEAL_DEVICE QueryTile query_tile(u32 use) const { return {base + SharedLayout::kQuery + query.index(use) * SharedLayout::kQueryBytes}; }
  FOVEAL_DEVICE QueryTile grad_out_tile(u32 use) const { return {base + SharedLayout::kGradOut + query.index(use) * SharedLayout::kGradOutBytes}; }
  FOVEAL_DEVICE KvTile grad_score_tile(u32 use) const { return {base + SharedLayout::kGradScore + use % 2 * SharedLayout::kGradScoreBytes}; }
  FOVEAL_DEVICE u32 lse(u32 use) const { return base + SharedLayout::kLse + query.index(use) * SharedLayout::kStatBytes; }
  FOVEAL_DEVICE u32 delta(u32 use) const { return base + SharedLayout::kDelta + query.index(use) * SharedLayout::kStatBytes; }
};

/// A task: a kv tile of one kv head; it walks along the query tiles of each query head of the group.
struct BackwardTask {
  Task task;  // head: of kv
  Sequence sequence;
  Walk walk;
  int group_head;  // query head being walked, within the group

  FOVEAL_DEVICE int first_kv() const { return task.row * kBlockKv; }
  FOVEAL_DEVICE int head_q(const TileSpace& space) const { return task.head * space.group_size + group_head; }

  /// First row of the statistics (and of dq's sum) of the sequence and head.
  FOVEAL_DEVICE i64 first_stat(const BackwardArgs& args) const { return stat_offset<kVarlen>(args, sequence, task.batch, head_q(args.space)); }

  FOVEAL_DEVICE bool next(int& round, const TileSpace& space) {
    do {
      if (!task_at(++round, space, space.heads_kv, task)) return false;
      sequence = sequence_of<kVarlen>(space, task.batch);
    } while (kVarlen && first_kv() >= sequence.length_kv);
    group_head = -1;
    walk.stop();
    return true;
  }

  FOVEAL_DEVICE bool next_tile(const TileSpace& space, bool& partial) {
    while (!walk.next(partial)) {
      if (++group_head == space.group_size) return false;
      walk.start(space, task.row, task.batch * space.heads_q + head_q(space), first_kv(), min(first_kv() + kBlockKv, sequence.length_kv),
                 sequence.length_q, kBlockQ);
    }
    partial = partial || first_kv() + kBlockKv > sequence.length_kv;
    return true;
  }
};

FOVEAL_DEVICE void produce(const BackwardArgs& args, const Rings& rings) {
  tma_prefetch_map(args.k);
  tma_prefetch_map(args.q);
  tma_prefetch_map(args.v);
  tma_prefetch_map(args.dout);
  int round = -1;
  BackwardTask work;
  u32 tile = 0, tasks = 0;
  while (work.next(round, args.space)) {
    const int batch = kVarlen ? 0 : work.task.batch;
    const int row_kv = work.sequence.first_kv + work.first_kv();
    bool partial, first = true;
    while (work.next_tile(args.space, partial)) {
      const int row_q = work.walk.tile * kBlockQ;
      const i64 stat = work.first_stat(args) + row_q;
      const int head = work.head_q(args.space);
      if (first) {
        rings.key.wait_empty(tasks);
        mbarrier_arrive_expect_bytes(rings.key.full(tasks), SharedLayout::kKeyBytes);
        load_tile<kBlockKv, kDim>(rings.key_tile().address, args.k, rings.key.full(tasks), row_kv, work.task.head, batch);
      }
      rings.query.wait_empty(tile);
      mbarrier_arrive_expect_bytes(rings.query.full(tile), SharedLayout::kQueryBytes + SharedLayout::kStatBytes);
      load_tile<kBlockQ, kDim>(rings.query_tile(tile).address, args.q, rings.query.full(tile), work.sequence.first_q + row_q, head, batch);
      bulk_load(rings.lse(tile), args.lse2 + stat, SharedLayout::kStatBytes, rings.query.full(tile));
      if (first) {
        rings.value.wait_empty(tasks);
        mbarrier_arrive_expect_bytes(rings.value.full(tasks), SharedLayout::kValueBytes);
        load_tile<kBlockKv, kDimV>(rings.value_tile().address, args.v, rings.value.full(tasks), row_kv, work.task.head, batch);
        ++tasks;
        first = false;
      }
      rings.grad_out.wait_empty(tile);
      mbarrier_arrive_expect_bytes(rings.grad_out.full(tile), SharedLayout::kGradOutBytes + SharedLayout::kStatBytes);
      load_tile<kBlockQ, kDimV>(rings.grad_out_tile(tile).address, args.dout, rings.grad_out.full(tile), work.sequence.first_q + row_q, head, batch);
      bulk_load(rings.delta(tile), args.delta + stat, SharedLayout::kStatBytes, rings.grad_out.full(tile));
      ++tile;
    }
  }
}

/// One warpgroup: 64 keys of every task.
struct Consumer {
  const BackwardArgs& args;
  const ScoreArgs& score_args;
  const Rings& rings;
  const int group;
  const int thread;
  const float exponent;

  FOVEAL_DEVICE Consumer(const BackwardArgs& args, const ScoreArgs& score_args, const Rings& rings, int group)
      : args(args),
        score_args(score_args),
        rings(rings),
        group(group),
        thread(threadIdx.x % 128),
        exponent(kScoreMod ? kLog2e : args.scale * kLog2e) {}

  /// Position of the thread's first key in the sequence.
  FOVEAL_DEVICE int key_of(const BackwardTask& work) const { return work.first_kv() + 64 * group + fragment_first_row(thread); }

  /// scores (raw products) -> probabilities; the factor of the derivative, P d score_mod / d score, replaces them when there is a score_mod.
  template <bool partial>
  FOVEAL_DEVICE void probabilities(float (&scores)[kBlockQ / 2], u32 (&p)[kBlockQ / 4], const BackwardTask& work, u32 lse) const {
    const TileSpace& space = args.space;
    const int first_q = work.walk.tile * kBlockQ + fragment_first_column(thread);
    const int key = key_of(work);
    int low[2], high[2], kv[2];  // columns (queries) that the keys keep
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      kv[r] = min(key + 8 * r, work.sequence.length_kv - 1);
      high[r] = key + 8 * r < work.sequence.length_kv ? kBlockQ : -1;
      low[r] = 0;
      if constexpr (Walk::kLimitLow) low[r] = key + 8 * r - space.band_high - first_q;
      if constexpr (Walk::kLimitHigh) high[r] = min(high[r], key + 8 * r - space.band_low - first_q);
    }
    const int last_q = work.sequence.length_q - 1;
#pragma unroll
    for (int i = 0; i < kBlockQ / 2; i += 4) {
      const int first_column = fragment_column(i);
      float lse2[2];
      load_pair(lse + 4 * (fragment_first_column(thread) + first_column), lse2);
      float kept[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int r = fragment_row(j), column = first_column + (j & 1);
        const int q = kScoreMod || kMaskProgram ? min(first_q + column, last_q) : 0;
        const ScoreCoord at{work.task.batch,        work.head_q(space),        q + space.q_offset, kv[r] + space.kv_offset, work.sequence.length_q,
                            work.sequence.length_kv};
        float value = scores[i + j], slope = 1.0f;
        if constexpr (kScoreMod) value = score_backward(score_args, value * args.scale, at, slope);
        kept[j] = exp2_approx(fmaf(value, exponent, -lse2[j & 1]));
        if constexpr (partial) {
          bool keep = column <= high[r];
          if constexpr (Walk::kLimitLow) keep = keep && column >= low[r];
          if constexpr (kMaskProgram) keep = keep && mask_keep(score_args, at);
          kept[j] = keep ? kept[j] : 0.0f;
        }
        scores[i + j] = kScoreMod ? kept[j] * slope : kept[j];
      }
      p[i / 2] = pack16<kBf16>(kept[0], kept[1]);
      p[i / 2 + 1] = pack16<kBf16>(kept[2], kept[3]);
    }
  }

  /// dS^T = P (dP^T - delta), packed.
  FOVEAL_DEVICE void score_gradients(const float (&p)[kBlockQ / 2], const float (&grad_p)[kBlockQ / 2], u32 (&packed)[kBlockQ / 4], u32 delta) const {
#pragma unroll
    for (int i = 0; i < kBlockQ / 2; i += 4) {
      float d[2];
      load_pair(delta + 4 * (fragment_first_column(thread) + fragment_column(i)), d);
      packed[i / 2] = pack16<kBf16>(p[i] * (grad_p[i] - d[0]), p[i + 1] * (grad_p[i + 1] - d[1]));
      packed[i / 2 + 1] = pack16<kBf16>(p[i + 2] * (grad_p[i + 2] - d[0]), p[i + 3] * (grad_p[i + 3] - d[1]));
    }
  }

  /// Adds this warpgroup's part of dQ to the sum of the query tile at `sum`: thread after thread, four registers at a time.
  FOVEAL_DEVICE void add_dq(float* sum, const float (&dq)[kDqColumns / 2]) const {
    float* to = sum + group * 64 * kDqColumns + 4 * thread;
#pragma unroll
    for (int i = 0; i < kDqColumns / 2; i += 4) {
      asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + i * 128), "f"(dq[i]), "f"(dq[i + 1]), "f"(dq[i + 2]),
                   "f"(dq[i + 3])
                   : "memory");
    }
  }

  template <int columns, int count>
  FOVEAL_DEVICE void write_rows(const RowTensor& tensor, const BackwardTask& work, const float (&acc)[count], float factor) const {
    const int key = key_of(work);
    u16* base = static_cast<u16*>(tensor.data) + (kVarlen ? 0 : work.task.batch * tensor.batch_stride) + work.task.head * tensor.head_stride;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = key + 8 * r;
      store_row<kBf16>(base + (work.sequence.first_kv + row) * tensor.row_stride, acc, r, factor, row < work.sequence.length_kv ? columns : 0,
                       thread % 32);
    }
  }

  FOVEAL_DEVICE void run() {
    u32 tile = 0, tasks = 0;
    int round = -1;
    BackwardTask work;
    while (work.next(round, args.space)) {
      float dk[kDim / 2], dv[kDimV / 2];
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) dk[i] = 0;
#pragma unroll
      for (int i = 0; i < kDimV / 2; ++i) dv[i] = 0;
      bool partial;
      if (work.next_tile(args.space, partial)) accumulate(work, partial, tile, tasks++, dk, dv);
      write_rows<kHeadDimV>(args.dv, work, dv, 1.0f);
      write_rows<kHeadDim>(args.dk, work, dk, args.scale);
    }
  }

  /// Walks along the query tiles of a task. Each round leaves the scores of the next tile under way.
  FOVEAL_DEVICE void accumulate(BackwardTask& work, bool partial, u32& tile, u32 use, float (&dk)[kDim / 2], float (&dv)[kDimV / 2]) const {
    constexpr u32 kScoresBarrier = 1;
    const bool leader = thread == 0;
    float scores[kBlockQ / 2], grad_p[kBlockQ / 2], dq[kDqColumns / 2];
    u32 p[kBlockQ / 4], grad_scores[kBlockQ / 4];
    const KvTile key_tile = uniform(rings.key_tile()), value_tile = uniform(rings.value_tile());

    const auto score_product = [&] {
      rings.query.wait_full(tile);
      wgmma_pin(scores);
      wgmma_fence();
      multiply_rows<kBf16, kBlockQ, kDim>(scores, key_tile, 64 * group, uniform(rings.query_tile(tile)));
      wgmma_commit();
    };

    rings.key.wait_full(use);
    score_product();
    rings.value.wait_full(use);
    for (;;) {
      const QueryTile query_tile = uniform(rings.query_tile(tile)), grad_out_tile = uniform(rings.grad_out_tile(tile));
      rings.grad_out.wait_full(tile);
      wgmma_pin(grad_p);
      wgmma_fence();
      multiply_rows<kBf16, kBlockQ, kDimV>(grad_p, value_tile, 64 * group, grad_out_tile);
      wgmma_commit();
      wgmma_wait<1>();
      wgmma_pin(scores);
      if (partial) {
        probabilities<true>(scores, p, work, rings.lse(tile));
      } else {
        probabilities<false>(scores, p, work, rings.lse(tile));
      }

      wgmma_pin(dv);
      wgmma_fence();
      multiply_registers<kBf16, kDimV, kBlockQ>(dv, p, grad_out_tile, true);
      wgmma_commit();
      wgmma_wait<1>();
      wgmma_pin(grad_p);
      score_gradients(scores, grad_p, grad_scores, rings.delta(tile));
      const KvTile grad_score_tile = uniform(rings.grad_score_tile(tile));
      store_fragment<kBlockQ>(grad_score_tile, 64 * group, grad_scores, thread);
      fence_async_proxy();
      named_barrier_sync(kScoresBarrier, 128 * kConsumers);

      wgmma_pin(dq);
      wgmma_pin(dk);
      wgmma_fence();
      multiply_columns<kBf16, kDqColumns, kBlockKv>(dq, grad_score_tile, kSplitColumns ? 0 : 64 * group, key_tile, kSplitColumns ? kDqColumns * group : 0);
      wgmma_commit();
      multiply_registers<kBf16, kDim, kBlockQ>(dk, grad_scores, query_tile, true);
      wgmma_commit();
      float* dq_sum = args.dq_sum + (work.first_stat(args) + work.walk.tile * kBlockQ) * kSumColumns;
      const bool more = work.next_tile(args.space, partial);
      wgmma_wait<1>();
      wgmma_pin(dq);
      if (leader) rings.grad_out.release(tile);
      add_dq(dq_sum, dq);
      wgmma_wait<0>();
      wgmma_pin(dk);
      wgmma_pin(dv);
      if (leader) rings.query.release(tile);
      ++tile;
      if (!more) break;
      score_product();
    }
    if (leader) {
      rings.key.release(use);
      rings.value.release(use);
    }
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1) backward_sm90(const __grid_constant__ BackwardArgs args,
                                                                         const __grid_constant__ ScoreArgs score_args) {
  extern __shared__ __align__(1024) u8 shared[];
  const Rings rings(shared_address(shared));
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    rings.key.init(1, kConsumers);
    rings.value.init(1, kConsumers);
    rings.query.init(1, kConsumers);
    rings.grad_out.init(1, kConsumers);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warp_group == 0) {
    registers_decrease<24>();
    if (threadIdx.x == 0) produce(args, rings);
  } else {
    registers_increase<240>();
    Consumer(args, score_args, rings, warp_group - 1).run();
  }
}
