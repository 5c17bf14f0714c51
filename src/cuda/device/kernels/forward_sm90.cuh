// Fused attention forward for Hopper, 16-bit types: one warp loads tiles with the copy engine, two or three warpgroups of 64 query rows compute.
//
// Each warpgroup keeps two products in flight: while the tensor cores do S' = Q K'^T of the next kv tile and O += P V of this one, the
// softmax of the other warpgroups fills the other units; named barriers take turns at issuing (kPingPong). Tasks follow each other without a
// seam: the first product of the next task is issued together with the last one of this task.
//
// Configuration, constexpr, above this text:
//   bool kBf16; int kHeadDim, kHeadDimV (multiples of 8), kBlockKv (of 16), kConsumers, kStages, kQueryStages, kProducerRegisters, kConsumerRegisters;
//   bool kPingPong, kVarlen, kSink, kDropout, kScoreMod, kMaskProgram; TileSource kTileSource (after schedule/tile_walk.cuh: kTiles);
//   the score program: struct ScoreArgs, score_forward, mask_keep.
#include "ptx/tma.cuh"
#include "schedule/dropout.cuh"
#include "schedule/tile_walk.cuh"
#include "softmax/online.cuh"
#include "tile/product.cuh"

constexpr int kBlockQ = 64 * kConsumers;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kDim = round_up(kHeadDim, 16);
constexpr int kDimV = round_up(kHeadDimV, 16);

using Walk = TileWalk<static_cast<TileSource>(kTileSource)>;
using QueryTile = SharedTile<kBlockQ>;
using KvTile = SharedTile<kBlockKv>;

struct SharedLayout {
  static constexpr int kQueryBytes = tile_bytes(kBlockQ, kDim);
  static constexpr int kKeyBytes = tile_bytes(kBlockKv, kDim);
  static constexpr int kValueBytes = tile_bytes(kBlockKv, kDimV);
  static constexpr int kQuery = 0;
  static constexpr int kKey = kQuery + kQueryStages * kQueryBytes;
  static constexpr int kValue = kKey + kStages * kKeyBytes;
  static constexpr int kBarriers = kValue + kStages * kValueBytes;
  static constexpr int kBytes = kBarriers + RingBarriers<kQueryStages>::kBytes + 2 * RingBarriers<kStages>::kBytes;
};

struct Rings {
  u32 base;
  RingBarriers<kQueryStages> query;
  RingBarriers<kStages> key, value;
  FOVEAL_DEVICE explicit Rings(u32 address)
      : base(address),
        query{address + SharedLayout::kBarriers},
        key{query.address + RingBarriers<kQueryStages>::kBytes},
        value{key.address + RingBarriers<kStages>::kBytes} {}
  FOVEAL_DEVICE QueryTile query_tile(u32 index) const { return {base + SharedLayout::kQuery + index * SharedLayout::kQueryBytes}; }
  FOVEAL_DEVICE KvTile key_tile(u32 index) const { return {base + SharedLayout::kKey + index * SharedLayout::kKeyBytes}; }
  FOVEAL_DEVICE KvTile value_tile(u32 index) const { return {base + SharedLayout::kValue + index * SharedLayout::kValueBytes}; }
};

/// A task with the tiles it visits.
struct ForwardTask {
  Task task;
  Sequence sequence;
  Walk walk{};

  FOVEAL_DEVICE int first_row() const { return task.row * kBlockQ; }

  /// The next task of this CTA that exists in its sequence.
  FOVEAL_DEVICE bool next(TaskWalk& tasks, const TileSpace& space) {
    for (;;) {
      if (!tasks.next(space, space.heads_q, task)) return false;
      sequence = sequence_of<kVarlen>(space, task.batch);
      if (kVarlen && first_row() >= sequence.length_q) continue;
      walk.start(space, task, task.batch * space.heads_q + task.head, first_row(), min(first_row() + kBlockQ, sequence.length_q), sequence.length_kv,
                 kBlockKv, space.band_low, space.band_high);
      return true;
    }
  }
};

template <int rows, int columns>
FOVEAL_DEVICE void load_tile(u32 destination, const TensorMap& map, u32 barrier, int row, int head, int batch) {
#pragma unroll
  for (int chunk = 0; chunk < chunk_count(columns); ++chunk) {
    tma_load(destination + chunk * rows * kChunkRowBytes, map, barrier, chunk * kChunkColumns, row, head, batch);
  }
}

FOVEAL_DEVICE void produce(const ForwardArgs& args, const Rings& rings) {
  tma_prefetch_map(args.q);
  tma_prefetch_map(args.k);
  tma_prefetch_map(args.v);
  TaskWalk tasks;
  ForwardTask work;
  RingCursor<kQueryStages> query;
  RingCursor<kStages> key, value;
  bool value_pending = false;  // values follow one tile behind keys, as they are used
  int value_row = 0, value_head = 0, value_batch = 0;
  const auto load_value = [&] {
    mbarrier_wait(rings.value.empty(value.index), value.parity ^ 1);
    mbarrier_arrive_expect_bytes(rings.value.full(value.index), SharedLayout::kValueBytes);
    load_tile<kBlockKv, kDimV>(rings.value_tile(value.index).address, args.v, rings.value.full(value.index), value_row, value_head, value_batch);
    value.advance();
  };
  while (work.next(tasks, args.space)) {
    const int batch = kVarlen ? 0 : work.task.batch;
    const int kv_head = work.task.head / args.space.group_size;
    bool partial, first = true;
    while (work.walk.next(partial)) {
      const int row = work.sequence.first_kv + work.walk.tile * kBlockKv;
      if (first) {
        mbarrier_wait(rings.query.empty(query.index), query.parity ^ 1);
        mbarrier_arrive_expect_bytes(rings.query.full(query.index), SharedLayout::kQueryBytes);
        load_tile<kBlockQ, kDim>(rings.query_tile(query.index).address, args.q, rings.query.full(query.index),
                                 work.sequence.first_q + work.first_row(), work.task.head, batch);
        query.advance();
        first = false;
      }
      mbarrier_wait(rings.key.empty(key.index), key.parity ^ 1);
      mbarrier_arrive_expect_bytes(rings.key.full(key.index), SharedLayout::kKeyBytes);
      load_tile<kBlockKv, kDim>(rings.key_tile(key.index).address, args.k, rings.key.full(key.index), row, kv_head, batch);
      key.advance();
      if (value_pending) load_value();
      value_row = row;
      value_head = kv_head;
      value_batch = batch;
      value_pending = true;
    }
  }
  if (value_pending) load_value();
}

/// One warpgroup: 64 rows of every task.
struct Consumer {
  const ForwardArgs& args;
  const ScoreArgs& score_args;
  const Rings& rings;
  const int group;       // of warps
  const int thread;      // inside the group
  const float exponent;  // scores to powers of two

  FOVEAL_DEVICE Consumer(const ForwardArgs& args, const ScoreArgs& score_args, const Rings& rings, int group)
      : args(args),
        score_args(score_args),
        rings(rings),
        group(group),
        thread(threadIdx.x % 128),
        exponent(kScoreMod ? kLog2e : args.scale * kLog2e) {}

  FOVEAL_DEVICE int row_of(const ForwardTask& work) const { return work.first_row() + 64 * group + fragment_first_row(thread); }

  /// Scores as the softmax wants them: score_mod applied, -inf where the pair is not kept.
  template <bool partial>
  FOVEAL_DEVICE void transform(float (&scores)[kBlockKv / 2], const ForwardTask& work) const {
    const TileSpace& space = args.space;
    const int first_kv = work.walk.tile * kBlockKv + fragment_first_column(thread);
    const int last_kv = work.sequence.length_kv - 1;
    const int row = row_of(work);
    int low[2], high[2], q[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      q[r] = min(row + 8 * r, work.sequence.length_q - 1);
      high[r] = last_kv - first_kv;
      low[r] = -1;
      if constexpr (static_cast<TileSource>(kTileSource) == TileSource::band) {
        high[r] = min(high[r], row + 8 * r + space.band_high - first_kv);
        low[r] = row + 8 * r + space.band_low - first_kv;
      }
    }
#pragma unroll
    for (int i = 0; i < kBlockKv / 2; ++i) {
      const int column = fragment_column(i), r = fragment_row(i);
      const int kv = partial ? min(first_kv + column, last_kv) : first_kv + column;
      const ScoreCoord at{work.task.batch,  work.task.head, q[r] + space.q_offset, kv + space.kv_offset, work.sequence.length_q,
                          work.sequence.length_kv};
      if constexpr (kScoreMod) scores[i] = score_forward(score_args, scores[i] * args.scale, at);
      if constexpr (partial) {
        bool keep = column <= high[r];
        if constexpr (static_cast<TileSource>(kTileSource) == TileSource::band) keep = keep && column >= low[r];
        if constexpr (kMaskProgram) keep = keep && mask_keep(score_args, at);
        scores[i] = keep ? scores[i] : -FOVEAL_INFINITY;
      }
    }
  }

  /// Drops probabilities; what stays is scaled at the end.
  FOVEAL_DEVICE void drop(float (&p)[kBlockKv / 2], const ForwardTask& work) const {
    const u32 flat_head = work.task.batch * args.space.heads_q + work.task.head;
    const int kv = work.walk.tile * kBlockKv + args.space.kv_offset + fragment_first_column(thread);
    const int row = row_of(work) + args.space.q_offset;
#pragma unroll
    for (int i = 0; i < kBlockKv / 2; i += 2) {
      const uint4 words = dropout_words(args.dropout, (kv + fragment_column(i)) / 4, row + 8 * fragment_row(i), flat_head);
      const bool upper = thread & 1;  // two columns of a group of four
      if ((upper ? words.z : words.x) < args.dropout.threshold) p[i] = 0;
      if ((upper ? words.w : words.y) < args.dropout.threshold) p[i + 1] = 0;
    }
  }

  FOVEAL_DEVICE void write_lse(const ForwardTask& work, const float (&lse)[2]) const {
    if (args.lse == nullptr || thread % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_of(work) + 8 * r;
      if (row >= work.sequence.length_q) continue;
      args.lse[(kVarlen ? 0 : work.task.batch * args.lse_batch_stride) + work.task.head * args.lse_head_stride +
               (work.sequence.first_q + row) * args.lse_row_stride] = lse[r];
    }
  }

  FOVEAL_DEVICE void write_out(const ForwardTask& work, const float (&acc)[kDimV / 2], const float (&factor)[2]) const {
    u16* base = static_cast<u16*>(args.out.data) + (kVarlen ? 0 : work.task.batch * args.out.batch_stride) + work.task.head * args.out.head_stride;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_of(work) + 8 * r;
      u32 word[kDimV / 8];
#pragma unroll
      for (int j = 0; j < kDimV / 8; ++j) word[j] = pack16<kBf16>(acc[4 * j + 2 * r] * factor[r], acc[4 * j + 2 * r + 1] * factor[r]);
      store_row(base + (work.sequence.first_q + row) * args.out.row_stride, word, kHeadDimV, row < work.sequence.length_q, thread % 32);
    }
  }

  FOVEAL_DEVICE void finish(const ForwardTask& work, OnlineSoftmax& softmax, const float (&acc)[kDimV / 2]) const {
    float inverse[2], lse[2];
    if constexpr (kSink) {
      softmax.finish(exponent, args.sink[work.task.head], inverse, lse);
    } else {
      softmax.finish(exponent, inverse, lse);
    }
    write_lse(work, lse);
    if constexpr (kDropout) {
      inverse[0] *= args.dropout.keep_scale;
      inverse[1] *= args.dropout.keep_scale;
    }
    write_out(work, acc, inverse);
  }

  /// The next kv tile of this task, or the first one of the next task; tasks without tiles are written here.
  FOVEAL_DEVICE bool advance(ForwardTask& work, TaskWalk& tasks, bool& partial, bool& new_task) const {
    new_task = false;
    while (!work.walk.next(partial)) {
      if (new_task) {
        OnlineSoftmax nothing;
        nothing.reset();
        float zeros[kDimV / 2] = {};
        finish(work, nothing, zeros);
      }
      if (!work.next(tasks, args.space)) return false;
      new_task = true;
    }
    return true;
  }

  FOVEAL_DEVICE void run() {
    constexpr u32 kTurnBarrier = 1;  // one for each group
    const bool leader = thread == 0;
    RingCursor<kQueryStages> query;
    RingCursor<kStages> key, value;
    TaskWalk tasks;
    ForwardTask next;  // whose scores are computed
    bool partial, new_task;
    if (kPingPong && group == kConsumers - 1) named_barrier_arrive(kTurnBarrier, 256);
    if (!advance(next, tasks, partial, new_task)) return;

    float scores[kBlockKv / 2];
    float acc[kDimV / 2];
    u32 p[kBlockKv / 4];
    float rescale[2];
    OnlineSoftmax softmax;
    softmax.reset();

    const auto score_product = [&] {
      wgmma_pin(scores);
      wgmma_fence();
      multiply_rows<kBf16, kBlockKv, kDim>(scores, rings.query_tile(query.index), 64 * group, rings.key_tile(key.index));
      wgmma_commit();
    };
    const auto value_product = [&](bool accumulate) {
      wgmma_pin(acc);
      wgmma_fence();
      multiply_registers<kBf16, kDimV, kBlockKv>(acc, p, rings.value_tile(value.index), accumulate);
      wgmma_commit();
    };
    const auto probabilities = [&] {
      if (partial) {
        transform<true>(scores, next);
      } else if constexpr (kScoreMod) {
        transform<false>(scores, next);
      }
      softmax.update(scores, exponent, rescale);
      if constexpr (kDropout) drop(scores, next);
    };
    const auto release_key = [&] {
      wgmma_pin(scores);
      if (leader) mbarrier_arrive(rings.key.empty(key.index));
      key.advance();
    };

    mbarrier_wait(rings.query.full(query.index), query.parity);
    mbarrier_wait(rings.key.full(key.index), key.parity);
    score_product();
    wgmma_wait<0>();
    release_key();
    probabilities();
    pack_fragment<kBf16>(p, scores);

    ForwardTask work = next;  // whose output is accumulated
    bool accumulate = false;
    while (advance(next, tasks, partial, new_task)) {
      if (new_task) {
        if (leader) mbarrier_arrive(rings.query.empty(query.index));
        query.advance();
        mbarrier_wait(rings.query.full(query.index), query.parity);
      }
      mbarrier_wait(rings.key.full(key.index), key.parity);
      if constexpr (kPingPong) named_barrier_sync(kTurnBarrier + group, 256);
      score_product();
      mbarrier_wait(rings.value.full(value.index), value.parity);
      value_product(accumulate);
      if constexpr (kPingPong) named_barrier_arrive(kTurnBarrier + (group + 1) % kConsumers, 256);
      wgmma_wait<1>();
      release_key();
      OnlineSoftmax finished = softmax;
      if (new_task) softmax.reset();
      probabilities();
      wgmma_wait<0>();
      wgmma_pin(acc);
      if (leader) mbarrier_arrive(rings.value.empty(value.index));
      value.advance();
      pack_fragment<kBf16>(p, scores);
      accumulate = !new_task;
      if (new_task) {
        finish(work, finished, acc);
        work = next;
      } else if (__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < kDimV / 2; ++i) acc[i] *= rescale[fragment_row(i)];
      }
    }
    mbarrier_wait(rings.value.full(value.index), value.parity);
    value_product(accumulate);
    wgmma_wait<0>();
    wgmma_pin(acc);
    finish(work, softmax, acc);
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1) forward_sm90(const __grid_constant__ ForwardArgs args,
                                                                        const __grid_constant__ ScoreArgs score_args) {
  extern __shared__ __align__(1024) u8 shared[];
  const Rings rings(shared_address(shared));
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    rings.query.init(1, kConsumers);
    rings.key.init(1, kConsumers);
    rings.value.init(1, kConsumers);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warp_group == 0) {
    registers_decrease<kProducerRegisters>();
    if (threadIdx.x == 0) produce(args, rings);
  } else {
    registers_increase<kConsumerRegisters>();
    Consumer(args, score_args, rings, warp_group - 1).run();
  }
}
