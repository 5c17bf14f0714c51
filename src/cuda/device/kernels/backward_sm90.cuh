// Fused attention backward for Hopper, 16-bit types, head dims up to 128: a CTA owns 128 keys and values, walks along the query tiles and keeps dk
// and dv in registers; its contributions to dq are added to an fp32 buffer in global memory.
//
// Two warpgroups of 64 keys each. Scores are computed transposed, S^T = K Q^T, so that P^T and dS^T are already the A operands of
// dV += P^T dO and dK += dS^T Q; only dQ = dS K needs all keys, so dS^T goes through shared memory (two buffers, one barrier a tile).
//
// config.cuh: Element, SeqlenIndex; kHeadDim, kHeadDimV (multiples of 8), kBlockQ (64, or 128 for head dims up to 64), kStages, kTileSource (a
// TileSource); kVarlen, kDropout.
#include "philox.cuh"
#include "schedule/tasks.cuh"
#include "score/score.cuh"
#include "tile/fragment.cuh"
#include "tile/store_fragment.cuh"
#include "tile/tma_tile.cuh"

namespace foveal::device {

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
constexpr bool kMaskProgram = kSource == TileSource::list && kHasMask;
using Walk = TileWalk<kSource, true>;
using QueryTile = SwizzledTile<kBlockQ>;
using KvTile = SwizzledTile<kBlockKv>;

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
  FOVEAL_DEVICE int head_q(const AttentionArgs& args) const { return task.head * args.group_size + group_head; }

  FOVEAL_DEVICE bool next(int& round, const Sm90Args& args) {
    do {
      if (!task_at(++round, args.order, args.attention.batch, task)) return false;
      sequence = find_sequence<kVarlen, SeqlenIndex>(args.attention, task.batch);
    } while (kVarlen && first_kv() >= sequence.len_kv);
    group_head = -1;
    walk.stop();
    return true;
  }

  FOVEAL_DEVICE bool next_tile(const Sm90Args& args, bool& partial) {
    const TileRuns& runs = args.attention.runs_transposed;
    while (!walk.next(runs, sequence.len_q, kBlockQ, partial)) {
      if (++group_head == args.attention.group_size) return false;
      walk.start(args, runs, task.batch, head_q(args.attention), task.row, first_kv(), min(first_kv() + kBlockKv, sequence.len_kv), sequence.len_q,
                 kBlockQ);
    }
    partial = partial || first_kv() + kBlockKv > sequence.len_kv;
    return true;
  }
};

FOVEAL_DEVICE void produce(const Sm90Args& args, const Rings& rings) {
  tma_prefetch_map(args.k);
  tma_prefetch_map(args.q);
  tma_prefetch_map(args.v);
  tma_prefetch_map(args.dout);
  const float* lse2 = static_cast<const float*>(args.attention.lse2.data);
  const float* delta = static_cast<const float*>(args.attention.delta.data);
  int round = -1;
  BackwardTask work;
  u32 tile = 0, tasks = 0;
  while (work.next(round, args)) {
    const int batch = kVarlen ? 0 : work.task.batch;
    const int row_kv = work.sequence.first_kv + work.first_kv();
    bool partial, first = true;
    while (work.next_tile(args, partial)) {
      const int head = work.head_q(args.attention);
      const int row_q = work.walk.tile * kBlockQ;
      const int token = work.sequence.first_q + row_q;
      const i64 stat = stat_row<kVarlen>(args, work.sequence, head) + row_q;
      if (first) {
        rings.key.wait_empty(tasks);
        mbarrier_arrive_expect_bytes(rings.key.full(tasks), SharedLayout::kKeyBytes);
        load_tile<kBlockKv, kDim>(rings.key_tile().address, args.k, rings.key.full(tasks), row_kv, work.task.head, batch);
      }
      rings.query.wait_empty(tile);
      mbarrier_arrive_expect_bytes(rings.query.full(tile), SharedLayout::kQueryBytes + SharedLayout::kStatBytes);
      load_tile<kBlockQ, kDim>(rings.query_tile(tile).address, args.q, rings.query.full(tile), token, head, batch);
      bulk_load(rings.lse(tile), lse2 + stat, SharedLayout::kStatBytes, rings.query.full(tile));
      if (first) {
        rings.value.wait_empty(tasks);
        mbarrier_arrive_expect_bytes(rings.value.full(tasks), SharedLayout::kValueBytes);
        load_tile<kBlockKv, kDimV>(rings.value_tile().address, args.v, rings.value.full(tasks), row_kv, work.task.head, batch);
        ++tasks;
        first = false;
      }
      rings.grad_out.wait_empty(tile);
      mbarrier_arrive_expect_bytes(rings.grad_out.full(tile), SharedLayout::kGradOutBytes + SharedLayout::kStatBytes);
      load_tile<kBlockQ, kDimV>(rings.grad_out_tile(tile).address, args.dout, rings.grad_out.full(tile), token, head, batch);
      bulk_load(rings.delta(tile), delta + stat, SharedLayout::kStatBytes, rings.grad_out.full(tile));
      ++tile;
    }
  }
}

/// One warpgroup: 64 keys of every task.
struct Consumer {
  const Sm90Args& args;
  const Rings& rings;
  const int group;
  const int thread;
  const float exponent;

  FOVEAL_DEVICE Consumer(const Sm90Args& args, const Rings& rings, int group)
      : args(args),
        rings(rings),
        group(group),
        thread(threadIdx.x % 128),
        exponent(kHasScore ? kLog2e : static_cast<float>(args.attention.scale) * kLog2e) {}

  /// Position of the thread's first key in the sequence.
  FOVEAL_DEVICE int key_of(const BackwardTask& work) const { return work.first_kv() + 64 * group + fragment_first_row(thread); }

  /// Raw products -> probabilities, packed for dv (after dropout) and times d score_mod / d score in place. `dropped`: one bit per register.
  template <bool partial>
  FOVEAL_DEVICE void probabilities(float (&scores)[kBlockQ / 2], u32 (&p)[kBlockQ / 4], u32 (&dropped)[kBlockQ / 64], const BackwardTask& work,
                                   u32 lse) const {
    const AttentionArgs& attention = args.attention;
    const float scale = static_cast<float>(attention.scale);
    const int head = work.head_q(attention);
    const int first_q = work.walk.tile * kBlockQ + fragment_first_column(thread);
    const int last_q = work.sequence.len_q - 1;
    const int key = key_of(work);
    int low[2], high[2], kv[2];  // columns (queries) that the keys keep
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      kv[r] = min(key + 8 * r, work.sequence.len_kv - 1);
      high[r] = key + 8 * r < work.sequence.len_kv ? last_q - first_q : -1;
      if constexpr (Walk::kLimitHigh) high[r] = min(high[r], key + 8 * r - args.band_low - first_q);
      if constexpr (Walk::kLimitLow) low[r] = key + 8 * r - args.band_high - first_q;
    }
    DropoutRow dropout(attention.dropout, static_cast<u32>(work.task.batch) * attention.heads_q + head);
    if constexpr (kDropout) {
#pragma unroll
      for (int word = 0; word < kBlockQ / 64; ++word) {
        dropped[word] = 0;
#pragma unroll 1
        for (int i = 0; i < 32; ++i) {
          const int q = first_q + fragment_column(32 * word + i) + static_cast<int>(attention.q_offset);
          const int pair_kv = key + 8 * fragment_row(i) + static_cast<int>(attention.kv_offset);
          if (!dropout.keep(static_cast<u32>(q), static_cast<u32>(pair_kv))) dropped[word] |= 1u << i;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kBlockQ / 2; i += 4) {
      const int first_column = fragment_column(i);
      float lse2[2], kept[4];
      load_pair(lse + 4 * (fragment_first_column(thread) + first_column), lse2);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int r = fragment_row(j), column = first_column + (j & 1);
        const int q = min(first_q + column, last_q);
        const Position at{work.task.batch,     head, q + static_cast<int>(attention.q_offset), kv[r] + static_cast<int>(attention.kv_offset),
                          work.sequence.len_q, work.sequence.len_kv};
        const float raw = kHasScore ? scores[i + j] * scale : scores[i + j];
        const float value = kHasScore ? score_forward(raw, at, attention.score) : raw;
        kept[j] = exp2_real(fmaf(value, exponent, -lse2[j & 1]));
        if constexpr (partial) {
          bool keep = column <= high[r];
          if constexpr (Walk::kLimitLow) keep = keep && column >= low[r];
          if constexpr (kMaskProgram) keep = keep && mask_keep(at, attention.score);
          kept[j] = keep ? kept[j] : 0.0f;
        }
        scores[i + j] = kept[j];
        if constexpr (kHasScore) {
          scores[i + j] *= score_backward(raw, at, attention.score);
          if constexpr (partial) scores[i + j] = kept[j] == 0.0f ? 0.0f : scores[i + j];
        }
        if constexpr (kDropout) {
          kept[j] = dropped[(i + j) / 32] >> (i + j) % 32 & 1 ? 0.0f : kept[j] * attention.dropout.keep_scale;
        }
      }
      p[i / 2] = pack(Element{}, kept[0], kept[1]);
      p[i / 2 + 1] = pack(Element{}, kept[2], kept[3]);
    }
  }

  /// dS^T = P (dP^T - delta), packed.
  template <bool partial>
  FOVEAL_DEVICE void score_gradients(float (&p)[kBlockQ / 2], const float (&grad_p)[kBlockQ / 2], const u32 (&dropped)[kBlockQ / 64],
                                     u32 (&packed)[kBlockQ / 4], u32 delta) const {
#pragma unroll
    for (int i = 0; i < kBlockQ / 2; i += 4) {
      float d[2];
      load_pair(delta + 4 * (fragment_first_column(thread) + fragment_column(i)), d);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float grad = grad_p[i + j];
        if constexpr (kDropout) grad = dropped[(i + j) / 32] >> (i + j) % 32 & 1 ? 0.0f : grad * args.attention.dropout.keep_scale;
        const float product = p[i + j] * (grad - d[j & 1]);
        p[i + j] = partial && p[i + j] == 0.0f ? 0.0f : product;  // what is not kept may hold NaN
      }
      packed[i / 2] = pack(Element{}, p[i], p[i + 1]);
      packed[i / 2 + 1] = pack(Element{}, p[i + 2], p[i + 3]);
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
  FOVEAL_DEVICE void write_rows(const Tensor& tensor, const BackwardTask& work, const float (&acc)[count], float factor) const {
    if (tensor.data == nullptr) return;
    const int key = key_of(work);
    u16* base = static_cast<u16*>(tensor.data) + work.task.batch * tensor.batch + work.task.head * tensor.head;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = key + 8 * r;
      store_row<Element>(base + (work.sequence.first_kv + row) * tensor.seq, acc, r, factor, row < work.sequence.len_kv ? columns : 0,
                       thread % 32);
    }
  }

  FOVEAL_DEVICE void run() {
    u32 tile = 0, tasks = 0;
    int round = -1;
    BackwardTask work;
    while (work.next(round, args)) {
      float dk[kDim / 2], dv[kDimV / 2];
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) dk[i] = 0;
#pragma unroll
      for (int i = 0; i < kDimV / 2; ++i) dv[i] = 0;
      bool partial;
      if (work.next_tile(args, partial)) accumulate(work, partial, tile, tasks++, dk, dv);
      write_rows<kHeadDimV>(args.attention.dv, work, dv, 1.0f);
      write_rows<kHeadDim>(args.attention.dk, work, dk, static_cast<float>(args.attention.scale));
    }
  }

  /// Walks along the query tiles of a task. Each round leaves the scores of the next tile under way.
  FOVEAL_DEVICE void accumulate(BackwardTask& work, bool partial, u32& tile, u32 use, float (&dk)[kDim / 2], float (&dv)[kDimV / 2]) const {
    constexpr u32 kScoresBarrier = 1;
    const bool leader = thread == 0;
    float scores[kBlockQ / 2], grad_p[kBlockQ / 2], dq[kDqColumns / 2];
    u32 p[kBlockQ / 4], grad_scores[kBlockQ / 4], dropped[kBlockQ / 64];

    const auto score_product = [&] {
      rings.query.wait_full(tile);
      wgmma_pin(scores);
      wgmma_fence();
      multiply_rows<Element, kBlockQ, kDim>(scores, uniform(rings.key_tile()), 64 * group, uniform(rings.query_tile(tile)));
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
      multiply_rows<Element, kBlockQ, kDimV>(grad_p, uniform(rings.value_tile()), 64 * group, grad_out_tile);
      wgmma_commit();
      wgmma_wait<1>();
      wgmma_pin(scores);
      if (partial) {
        probabilities<true>(scores, p, dropped, work, rings.lse(tile));
      } else {
        probabilities<false>(scores, p, dropped, work, rings.lse(tile));
      }

      wgmma_pin(dv);
      wgmma_fence();
      multiply_registers<Element, kDimV, kBlockQ>(dv, p, grad_out_tile, true);
      wgmma_commit();
      wgmma_wait<1>();
      wgmma_pin(grad_p);
      if (partial) {
        score_gradients<true>(scores, grad_p, dropped, grad_scores, rings.delta(tile));
      } else {
        score_gradients<false>(scores, grad_p, dropped, grad_scores, rings.delta(tile));
      }
      const KvTile grad_score_tile = uniform(rings.grad_score_tile(tile));
      store_fragment<kBlockQ>(grad_score_tile, 64 * group, grad_scores, thread);
      fence_async_proxy();
      named_barrier_sync(kScoresBarrier, 128 * kConsumers);

      wgmma_pin(dq);
      wgmma_pin(dk);
      wgmma_fence();
      multiply_columns<Element, kDqColumns, kBlockKv>(dq, grad_score_tile, kSplitColumns ? 0 : 64 * group, uniform(rings.key_tile()), kSplitColumns ? kDqColumns * group : 0);
      wgmma_commit();
      multiply_registers<Element, kDim, kBlockQ>(dk, grad_scores, query_tile, true);
      wgmma_commit();
      float* dq_sum = args.dq_sum + (stat_row<kVarlen>(args, work.sequence, work.head_q(args.attention)) + work.walk.tile * kBlockQ) * kSumColumns;
      const bool more = work.next_tile(args, partial);
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

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 1) backward_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  using namespace foveal::device;
  extern __shared__ __align__(1024) unsigned char shared[];
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
    Consumer(args, rings, warp_group - 1).run();
  }
}
