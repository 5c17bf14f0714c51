// Fused attention forward for Hopper, 16-bit types: one warp loads tiles with the copy engine, two or three warpgroups of 64 query rows compute.
//
// Each warpgroup keeps two products in flight: while the tensor cores do S' = Q K'^T of the next kv tile and O += P V of this one, the
// softmax of the other warpgroups fills the other units; named barriers take turns at issuing (kPingPong). Tasks follow each other without a
// seam: the first product of the next task is issued together with the last one of this task.
//
// Configuration, constexpr, above this text:
//   bool kBf16; int kHeadDim, kHeadDimV (multiples of 8), kBlockKv (of 16), kConsumers, kStages, kQueryStages, kProducerRegisters, kConsumerRegisters;
//   bool kPingPong, kVarlen, kSink, kDropout, kScoreMod, kMaskProgram; int kTileSource (a TileSource);
//   the score program: struct ScoreArgs, score_forward, mask_keep.
#include "schedule/dropout.cuh"
#include "schedule/tile_walk.cuh"
#include "softmax/online.cuh"
#include "tile/load.cuh"

constexpr int kBlockQ = 64 * kConsumers;
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kDim = round_up(kHeadDim, 16);
constexpr int kDimV = round_up(kHeadDimV, 16);

constexpr TileSource kSource = static_cast<TileSource>(kTileSource);
using Walk = TileWalk<kSource, false>;
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
  FOVEAL_DEVICE QueryTile query_tile(u32 use) const { return {base + SharedLayout::kQuery + query.index(use) * SharedLayout::kQueryBytes}; }
  FOVEAL_DEVICE KvTile key_tile(u32 use) const { return {base + SharedLayout::kKey + key.index(use) * SharedLayout::kKeyBytes}; }
  FOVEAL_DEVICE KvTile value_tile(u32 use) const { return {base + SharedLayout::kValue + value.index(use) * SharedLayout::kValueBytes}; }
};

/// A task with the tiles it visits.
struct ForwardTask {
  Task task;
  Sequence sequence;
  Walk walk{};

  FOVEAL_DEVICE int first_row() const { return task.row * kBlockQ; }

  FOVEAL_DEVICE bool at(int round, const TileSpace& space) {
    if (!task_at(round, space, space.heads_q, task)) return false;
    sequence = sequence_of<kVarlen>(space, task.batch);
    return true;
  }

  /// The next task of this CTA that exists in its sequence.
  FOVEAL_DEVICE bool next(int& round, const TileSpace& space) {
    do {
      if (!at(++round, space)) return false;
    } while (kVarlen && first_row() >= sequence.length_q);
    walk.start(space, task.row, task.batch * space.heads_q + task.head, first_row(), min(first_row() + kBlockQ, sequence.length_q),
               sequence.length_kv, kBlockKv);
    return true;
  }
};

FOVEAL_DEVICE void produce(const ForwardArgs& args, const Rings& rings) {
  tma_prefetch_map(args.q);
  tma_prefetch_map(args.k);
  tma_prefetch_map(args.v);
  int round = -1;
  ForwardTask work;
  u32 tile = 0, query = 0;  // uses of the rings; values follow one tile behind keys, as they are used
  int value_row = 0, value_head = 0, value_batch = 0;
  const auto load_value = [&](u32 use) {
    rings.value.wait_empty(use);
    mbarrier_arrive_expect_bytes(rings.value.full(use), SharedLayout::kValueBytes);
    load_tile<kBlockKv, kDimV>(rings.value_tile(use).address, args.v, rings.value.full(use), value_row, value_head, value_batch);
  };
  while (work.next(round, args.space)) {
    const int batch = kVarlen ? 0 : work.task.batch;
    const int kv_head = work.task.head / args.space.group_size;
    bool partial, first = true;
    while (work.walk.next(partial)) {
      if (first) {
        rings.query.wait_empty(query);
        mbarrier_arrive_expect_bytes(rings.query.full(query), SharedLayout::kQueryBytes);
        load_tile<kBlockQ, kDim>(rings.query_tile(query).address, args.q, rings.query.full(query), work.sequence.first_q + work.first_row(),
                                 work.task.head, batch);
        ++query;
        first = false;
      }
      const int row = work.sequence.first_kv + work.walk.tile * kBlockKv;
      rings.key.wait_empty(tile);
      mbarrier_arrive_expect_bytes(rings.key.full(tile), SharedLayout::kKeyBytes);
      load_tile<kBlockKv, kDim>(rings.key_tile(tile).address, args.k, rings.key.full(tile), row, kv_head, batch);
      if (tile > 0) load_value(tile - 1);
      value_row = row;
      value_head = kv_head;
      value_batch = batch;
      ++tile;
    }
  }
  if (tile > 0) load_value(tile - 1);
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

  FOVEAL_DEVICE ForwardTask task_of(int round) const {
    ForwardTask work;
    work.at(round, args.space);
    return work;
  }

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
      if constexpr (Walk::kLimitHigh) high[r] = min(high[r], row + 8 * r + space.band_high - first_kv);
      if constexpr (Walk::kLimitLow) low[r] = row + 8 * r + space.band_low - first_kv;
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
        if constexpr (Walk::kLimitLow) keep = keep && column >= low[r];
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

  /// What is left of a task whose last product is under way: where its output goes, and the factor of each row.
  struct Ending {
    u16* out;  // first row of this thread
    int rows;  // that exist from there on
    float factor[2];
  };

  /// Writes the statistics of a task.
  FOVEAL_DEVICE Ending end(const ForwardTask& work, OnlineSoftmax& softmax) const {
    Ending ending;
    float lse[2];
    if constexpr (kSink) {
      softmax.finish(exponent, args.sink[work.task.head], ending.factor, lse);
    } else {
      softmax.finish(exponent, ending.factor, lse);
    }
    write_lse(work, lse);
    if constexpr (kDropout) {
      ending.factor[0] *= args.dropout.keep_scale;
      ending.factor[1] *= args.dropout.keep_scale;
    }
    const int row = row_of(work);
    ending.rows = work.sequence.length_q - row;
    ending.out = static_cast<u16*>(args.out.data) + (kVarlen ? 0 : work.task.batch * args.out.batch_stride) +
                 work.task.head * args.out.head_stride + (work.sequence.first_q + row) * args.out.row_stride;
    return ending;
  }

  FOVEAL_DEVICE void write_out(const Ending& ending, const float (&acc)[kDimV / 2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      store_row<kBf16>(ending.out + 8 * r * args.out.row_stride, acc, r, ending.factor[r], ending.rows > 8 * r ? kHeadDimV : 0, thread % 32);
    }
  }

  FOVEAL_DEVICE void write_empty(const ForwardTask& work) const {
    OnlineSoftmax nothing;
    nothing.reset();
    const float zeros[kDimV / 2] = {};
    write_out(end(work, nothing), zeros);
  }

  /// The next kv tile of this task, or the first one of the next task; tasks without tiles are written here.
  FOVEAL_DEVICE bool advance(ForwardTask& work, int& round, bool& partial, bool& new_task) const {
    new_task = false;
    while (!work.walk.next(partial)) {
      if (new_task) write_empty(work);
      if (!work.next(round, args.space)) return false;
      new_task = true;
    }
    return true;
  }

  FOVEAL_DEVICE void run() {
    constexpr u32 kTurnBarrier = 1;  // one for each group
    const bool leader = thread == 0;
    int next_round = -1;
    ForwardTask next;  // whose scores are computed
    u32 tile = 0, query = 0;
    bool partial, new_task;
    if (kPingPong && group == kConsumers - 1) named_barrier_arrive(kTurnBarrier, 256);
    if (!advance(next, next_round, partial, new_task)) return;

    float scores[kBlockKv / 2];
    float acc[kDimV / 2];
    u32 p[kBlockKv / 4];
    float rescale[2];
    OnlineSoftmax softmax;
    softmax.reset();

    const auto score_product = [&] {
      wgmma_pin(scores);
      wgmma_fence();
      multiply_rows<kBf16, kBlockKv, kDim>(scores, uniform(rings.query_tile(query)), 64 * group, uniform(rings.key_tile(tile)));
      wgmma_commit();
    };
    const auto value_product = [&](u32 use, bool accumulate) {
      wgmma_pin(acc);
      wgmma_fence();
      multiply_registers<kBf16, kDimV, kBlockKv>(acc, p, uniform(rings.value_tile(use)), accumulate);
      wgmma_commit();
    };
    const auto probabilities = [&] {
      if (leader) rings.key.release(tile);
      wgmma_pin(scores);
      if (partial) {
        transform<true>(scores, next);
      } else if constexpr (kScoreMod) {
        transform<false>(scores, next);
      }
      softmax.update(scores, exponent, rescale);
      if constexpr (kDropout) drop(scores, next);
    };

    rings.query.wait_full(query);
    rings.key.wait_full(tile);
    score_product();
    wgmma_wait<0>();
    probabilities();
    pack_fragment<kBf16>(p, scores);

    int round = next_round;  // of the task whose output is accumulated
    bool accumulate = false;
    while (advance(next, next_round, partial, new_task)) {
      Ending ending;
      if (new_task) {
        ending = end(task_of(round), softmax);
        softmax.reset();
        round = next_round;
        if (leader) rings.query.release(query);
        rings.query.wait_full(++query);
      }
      rings.key.wait_full(++tile);
      if constexpr (kPingPong) named_barrier_sync(kTurnBarrier + group, 256);
      score_product();
      rings.value.wait_full(tile - 1);
      value_product(tile - 1, accumulate);
      if constexpr (kPingPong) named_barrier_arrive(kTurnBarrier + (group + 1) % kConsumers, 256);
      wgmma_wait<1>();
      probabilities();
      if constexpr (kOrdered) softmax.complete();
      wgmma_wait<0>();
      wgmma_pin(acc);
      if (leader) rings.value.release(tile - 1);
      pack_fragment<kBf16>(p, scores);
      accumulate = !new_task;
      if (new_task) {
        write_out(ending, acc);
      } else if (__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < kDimV / 2; ++i) acc[i] *= rescale[fragment_row(i)];
      }
    }
    rings.value.wait_full(tile);
    value_product(tile, accumulate);
    wgmma_wait<0>();
    wgmma_pin(acc);
    write_out(end(task_of(round), softmax), acc);
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
