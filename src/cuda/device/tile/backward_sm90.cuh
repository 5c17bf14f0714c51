#pragma once
// What the backward kernels for Hopper share: shared memory, the walk of a task, the warp that loads, and the arithmetic on scores. A CTA owns kBlockKv keys
// and values; scores are computed transposed, S^T = K Q^T, so that P^T and dS^T are already the A operands of dV += P^T dO and dK += dS^T Q.
//
// From the kernel: kConsumers, kBlockKv, kPartColumns; kReleases: arrivals of a warpgroup that give a stage of queries back.
#include "philox.cuh"
#include "schedule/tasks.cuh"
#include "score/score.cuh"
#include "tile/collect_reads.cuh"
#include "tile/fragment.cuh"
#include "tile/store_fragment.cuh"
#include "tile/tma_tile.cuh"

namespace foveal::device {

constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kDim = round_up(kHeadDim, 16);
constexpr int kDimV = round_up(kHeadDimV, 16);
constexpr int kSumColumns = kChunkColumns * chunk_count(kDim);  // of dq's sum
constexpr TileSource kSource = static_cast<TileSource>(kTileSource);
constexpr bool kMaskProgram = kSource == TileSource::list && kHasMask;
using Walk = TileWalk<kSource, true>;
static_assert(!kReproducible || kSource != TileSource::list, "rows of keys that visit a tile of queries must be consecutive");
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
  static constexpr int kStage = kBarriers + 2 * RingBarriers<1>::kBytes + 2 * RingBarriers<kStages>::kBytes;
  static constexpr int kBytes = kStage + 4 * kConsumers * kStageBytes;
};

struct Rings {
  unsigned char* memory;
  u32 base;
  RingBarriers<1> key, value;
  RingBarriers<kStages> query, grad_out;  // with them come lse and delta
  FOVEAL_DEVICE explicit Rings(unsigned char* memory)
      : memory(memory),
        base(shared_address(memory)),
        key{base + SharedLayout::kBarriers},
        value{key.address + RingBarriers<1>::kBytes},
        query{value.address + RingBarriers<1>::kBytes},
        grad_out{query.address + RingBarriers<kStages>::kBytes} {}

  /// By all threads, before anything else.
  FOVEAL_DEVICE void init() const {
    if (threadIdx.x == 0) {
      key.init(1, kConsumers);
      value.init(1, kConsumers);
      query.init(1, kConsumers * kReleases);
      grad_out.init(1, kConsumers * kReleases);
      fence_mbarrier_init();
    }
    __syncthreads();
  }

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
      if (!task_at(++round, args.order, task)) return false;
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

/// Where dQ of a query tile is summed. Reproducible: rows of keys add one after the other, in their order; a row waits only for tasks that were
/// dealt before it, so that with all CTAs running somebody can always go on.
struct DqTarget {
  static constexpr int kTurns = 8;  // two parts of four warps, each for itself
  float* sum;
  u32* turns;
  u32 turn;

  FOVEAL_DEVICE void wait_turn(int part) const {
    const u32* now = turns + 4 * part + warp_id() % 4;
    u32 value;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(now) : "memory");
    } while (value != turn);
  }
  FOVEAL_DEVICE void end_turn(int part) const {
    __syncwarp();
    if (lane_id() == 0)
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(turns + 4 * part + warp_id() % 4), "r"(turn + 1) : "memory");
  }
};

/// What one warpgroup does to the scores of its 64 keys.
struct BackwardGroup {
  const Sm90Args& args;
  const Rings& rings;
  const int first_key;  // of the tile
  const int thread;
  const float exponent;

  FOVEAL_DEVICE BackwardGroup(const Sm90Args& args, const Rings& rings, int first_key)
      : args(args),
        rings(rings),
        first_key(first_key),
        thread(threadIdx.x % 128),
        exponent(kHasScore ? kLog2e : static_cast<float>(args.attention.scale) * kLog2e) {}

  /// Position of the thread's first key in the sequence.
  FOVEAL_DEVICE int key_of(const BackwardTask& work) const { return work.first_kv() + first_key + fragment_first_row(thread); }

  /// Raw products -> probabilities, packed for dv (after dropout), and in place, times d score_mod / d score unless gradients of parameters need them
  /// without. `dropped`: one bit per register. `raw`: scaled products, where kKeepScores.
  template <bool partial>
  FOVEAL_DEVICE void probabilities(float (&scores)[kBlockQ / 2], u32 (&p)[kBlockQ / 4], u32 (&dropped)[kBlockQ / 64], float (&raws)[kRawScores],
                                   const BackwardTask& work, u32 lse) const {
    const AttentionArgs& attention = args.attention;
    const float scale = static_cast<float>(attention.scale);
    const int head = work.head_q(attention);
    const int first_q = work.walk.tile * kBlockQ + fragment_first_column(thread);
    const int last_q = work.sequence.len_q - 1;
    const int key = key_of(work);
    int low[2], high[2], kv[2];  // columns (queries) that the keys keep
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      kv[r] = partial ? min(key + 8 * r, work.sequence.len_kv - 1) : key + 8 * r;
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
        const int q = partial ? min(first_q + column, last_q) : first_q + column;
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
        if constexpr (kKeepScores) raws[i + j] = raw;
        if constexpr (kHasScore && !kCollects) {
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

  /// dS^T = P (dP^T - delta), packed. With gradients of parameters, grad_p becomes that of the modified scores.
  template <bool partial>
  FOVEAL_DEVICE void score_gradients(float (&p)[kBlockQ / 2], float (&grad_p)[kBlockQ / 2], const u32 (&dropped)[kBlockQ / 64],
                                     const float (&raws)[kRawScores], u32 (&packed)[kBlockQ / 4], const BackwardTask& work, u32 delta) const {
    const WarpPairs pairs = warp_pairs(work);
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
        if constexpr (kCollects) {
          grad_p[i + j] = p[i + j];
          const float sloped = p[i + j] * score_backward(raws[kKeepScores ? i + j : 0], pairs.template pair<partial>(i + j), args.attention.score);
          p[i + j] = p[i + j] == 0.0f ? 0.0f : sloped;
        }
      }
      packed[i / 2] = pack(Element{}, p[i], p[i + 1]);
      packed[i / 2 + 1] = pack(Element{}, p[i + 2], p[i + 3]);
    }
  }

  FOVEAL_DEVICE WarpPairs warp_pairs(const BackwardTask& work) const {
    const Position base{work.task.batch, work.head_q(args.attention), 0, 0, work.sequence.len_q, work.sequence.len_kv};
    float* stage = reinterpret_cast<float*>(rings.memory + SharedLayout::kStage + (threadIdx.x / kWarp - 4) * kStageBytes);
    return {args.attention, base, work.walk.tile * kBlockQ + fragment_first_column(thread), key_of(work), stage};
  }

  /// Adds a part of dQ to the sum of a query tile: register by four registers, thread after thread.
  template <int count>
  FOVEAL_DEVICE void add_dq(const DqTarget& target, int part, const float (&dq)[count]) const {
    if constexpr (kReproducible) target.wait_turn(part);
    float* to = target.sum + part * 64 * kPartColumns + 4 * thread;
#pragma unroll
    for (int i = 0; i < count; i += 4) {
      asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + i * 128), "f"(dq[i]), "f"(dq[i + 1]), "f"(dq[i + 2]),
                   "f"(dq[i + 3])
                   : "memory");
    }
    if constexpr (kReproducible) target.end_turn(part);
  }

  /// For the query tile that a task stands at.
  FOVEAL_DEVICE DqTarget dq_target(const BackwardTask& work) const {
    const i64 row = stat_row<kVarlen>(args, work.sequence, work.head_q(args.attention)) + work.walk.tile * kBlockQ;
    DqTarget target{args.dq_sum + row * kSumColumns, nullptr, 0};
    if constexpr (kReproducible) {
      const int first_key = kSource == TileSource::band ? work.walk.tile * kBlockQ + args.band_low : 0;
      target.turns = args.dq_turns + row / kBlockQ * DqTarget::kTurns;
      target.turn = work.task.row - max(first_key, 0) / kBlockKv;
    }
    return target;
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
};

}  // namespace foveal::device
