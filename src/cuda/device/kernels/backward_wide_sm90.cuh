// Fused attention backward for Hopper, 16-bit types, head dims above 128: a CTA owns 64 keys and values, two warpgroups share the work on them, and two
// CTAs, a cluster, walk along the same queries.
//
// dk and dv of 64 keys fill the registers of a warpgroup each, so one keeps dv (S, dV) and the other dk (S, dP, dK): both compute the scores, which saves
// every exchange but one: dS^T goes through shared memory to all four warpgroups of the cluster, and one tile later each makes some of the columns of
// dQ of it, over the keys of both CTAs. So a CTA adds half as much to dQ in global memory, which would bind, as if it went by itself.
//
// config.cuh: Element, SeqlenIndex; kHeadDim, kHeadDimV (multiples of 8), kBlockQ = 64, kStages, kTileSource (a TileSource); kVarlen, kDropout,
// kReproducible, kCollects, kCollectsTerms, kBinBits; kHelperRegisters, kConsumerRegisters.
#include "ptx/mbarrier.cuh"
#include "tile/dq_sum.cuh"

namespace foveal::device {

constexpr int kConsumers = 2;
constexpr int kBlockKv = 64, kClusterSize = 2;
constexpr bool kLseAhead = true;
constexpr int kReleases = arrivals_of_warps(4);  // each warp for itself: it also reads statistics
constexpr int kAddingWarps = 8;
constexpr int kKeyColumns = kSumColumns, kKeyStep = kPartColumns;  // dQ's parts of columns begin where chunks of K do
constexpr int kGradScoreTiles = 2;

}  // namespace foveal::device

#include "tile/backward_sm90.cuh"

namespace foveal::device {

static_assert(!kCollectsTerms && kPairTiles == 0, "shared memory is full");
static_assert(kSumCtas == kClusterSize && kBlockQ == 64 && chunk_count(kDim) > 2, "narrower heads have a better kernel");

/// Columns of dQ that a CTA adds; the last of them are for the side of the keys, which has more to do otherwise.
constexpr int kCtaColumns = 2 * kPartColumns, kKeySideColumns = 32;

/// A warpgroup that adds `columns` of these, from first_column on.
template <int first_column, int columns>
struct WideGroup : BackwardGroup {
  static constexpr int kColumns = columns;

  FOVEAL_DEVICE WideGroup(const Sm90Args& args, const Rings& rings) : BackwardGroup(args, rings, 0) {}

  /// dQ of a tile, of the keys of both CTAs; to be waited for.
  FOVEAL_DEVICE void start_query_gradients(float (&dq)[columns / 2], u32 use) const {
    rings.exchange.wait_full(use);
    const KeyTile own{rings.key_tile().address + 2 * cluster_rank() * KeyTile::kChunkBytes};
    wgmma_pin(dq);
    wgmma_fence();
    multiply_columns<Element, columns, kBlockKv>(dq, uniform(rings.grad_score_tile(0)), 0, uniform(own), first_column);
    multiply_columns<Element, columns, kBlockKv>(dq, uniform(rings.grad_score_tile(1)), 0, uniform(rings.peer_key_tile()), first_column,
                                                 true);
    wgmma_commit();
  }

  /// Once it is there. The scores' gradients that it came of may be overwritten, from both CTAs.
  FOVEAL_DEVICE void add_query_gradients(float (&dq)[columns / 2], u32 use, float* sum) const {
    wgmma_pin(dq);
    release(rings.exchange, use);
    if (kEveryLaneArrives || lane_id() == 0) mbarrier_arrive_there(address_in_cta(rings.exchange.empty(use), cluster_rank() ^ 1));
    if constexpr (kReproducible) rings.turn.wait_full(use);
    add_dq(sum, 64 * (kCtaColumns * cluster_rank() + first_column), dq);
    if constexpr (kReproducible) release(rings.turn, use);
  }

  /// The last of a task.
  FOVEAL_DEVICE void finish_query_gradients(u32 use, float* sum) const {
    float dq[columns / 2];
    start_query_gradients(dq, use);
    wgmma_wait<0>();
    add_query_gradients(dq, use, sum);
  }
};

struct ValueSide : WideGroup<0, kCtaColumns - kKeySideColumns> {
  using WideGroup::WideGroup;

  FOVEAL_DEVICE void run() const {
    const bool leader = kEveryLaneArrives || thread == 0;
    u32 tile = 0, tasks = 0;
    int round = -1;
    BackwardTask work;
    while (work.next(round, args)) {
      float dv[kDimV / 2];
#pragma unroll
      for (int i = 0; i < kDimV / 2; ++i) dv[i] = 0;
      float* sum = nullptr;  // of the tile before
      OfHead factors;
      bool partial;
      while (work.next_tile(args, partial)) {
        if (sum == nullptr) {
          rings.key.wait_full(tasks);
          factors = of_head(work);
        }
        follow_head(factors, work);
        float scores[kBlockQ / 2];
        u32 p[kBlockQ / 4], dropped[kBlockQ / 64];
        EarlyTerms early;
        AheadValues ahead;
        load_ahead(ahead, work, tile, partial);
        rings.query.wait_full(tile);
        LseAhead lse;
        load_lse_ahead(lse, tile);
        start_scores(scores, tile);
        const TileKind kind = kind_of(partial, tile);
        wgmma_wait<0>();
        wgmma_pin(scores);
        if constexpr (kHasLines) rings.line_values.wait_full(tile);
        take_probabilities(kind, scores, p, dropped, early, factors, ahead, lse, work, tile);
        if constexpr (kHasLines) release(rings.line_values, tile);
        release(rings.query, tile);

        const auto start_values = [&] {
          rings.grad_out.wait_full(tile);
          wgmma_pin(dv);
          wgmma_fence();
          multiply_registers<Element, kDimV, kBlockQ>(dv, p, uniform(rings.grad_out_tile(tile)), true);
          wgmma_commit();
        };
        if (sum == nullptr) {
          start_values();
        } else {
          float dq[kColumns / 2];
          start_query_gradients(dq, tile - 1);
          start_values();
          wgmma_wait<1>();
          add_query_gradients(dq, tile - 1, sum);  // beside dV
        }
        wgmma_wait<0>();
        wgmma_pin(dv);
        release(rings.grad_out, tile);
        sum = dq_sum(work);
        ++tile;
      }
      if (sum != nullptr) {
        finish_query_gradients(tile - 1, sum);
        if (leader) {
          rings.key.release(tasks);
          rings.value.release(tasks);
        }
        ++tasks;
      }
      write_rows<kHeadDimV>(args.attention.dv, work, dv, 1.0f);
    }
  }
};

struct KeySide : WideGroup<kCtaColumns - kKeySideColumns, kKeySideColumns> {
  using WideGroup::WideGroup;

  /// Gradients of scores to the other warpgroup, and to that of the other CTA: each warp its 16 keys.
  FOVEAL_DEVICE void exchange(const u32 (&grad_scores)[kBlockQ / 4], u32 use) const {
    constexpr u32 kBytes = 16 * kChunkRowBytes;
    rings.exchange.wait_empty(use);
    store_fragment<kBlockQ>(uniform(rings.grad_score_tile(0)), 0, grad_scores, thread);
    fence_async_proxy();
    __syncwarp();
    if (lane_id() == 0) {
      const u32 full = rings.exchange.full(use), other = cluster_rank() ^ 1, offset = thread / kWarp * kBytes;
      mbarrier_arrive_expect_bytes(full, kBytes);
      bulk_copy_there(address_in_cta(rings.grad_score_tile(1).address, other) + offset, rings.grad_score_tile(0).address + offset, kBytes,
                      address_in_cta(full, other));
    } else if (kEveryLaneArrives) {
      mbarrier_arrive(rings.exchange.full(use));
    }
  }

  FOVEAL_DEVICE void run() const {
    const bool leader = kEveryLaneArrives || thread == 0;
    u32 tile = 0, tasks = 0;
    int round = -1;
    BackwardTask work;
    while (work.next(round, args)) {
      float dk[kDim / 2];
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) dk[i] = 0;
      float* sum = nullptr;  // of the tile before
      bool partial;
      OfHead factors;
      while (work.next_tile(args, partial)) {
        if (sum == nullptr) {
          rings.key.wait_full(tasks);
          rings.value.wait_full(tasks);
          factors = of_head(work);
        }
        follow_head(factors, work);
        float scores[kBlockQ / 2], grad_p[kBlockQ / 2];
        u32 p[kBlockQ / 4], grad_scores[kBlockQ / 4], dropped[kBlockQ / 64];
        EarlyTerms early;
        ReadSums no_sums;
        AheadValues ahead;
        load_ahead(ahead, work, tile, partial);
        rings.query.wait_full(tile);
        LseAhead lse;
        load_lse_ahead(lse, tile);
        start_scores(scores, tile);
        const TileKind kind = kind_of(partial, tile);
        rings.grad_out.wait_full(tile);
        wgmma_pin(grad_p);
        wgmma_fence();
        multiply_rows<Element, kBlockQ, kDimV>(grad_p, uniform(rings.value_tile()), 0, uniform(rings.grad_out_tile(tile)));
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_pin(scores);
        if constexpr (kHasLines) rings.line_values.wait_full(tile);
        take_probabilities(kind, scores, p, dropped, early, factors, ahead, lse, work, tile);
        wgmma_wait<0>();
        wgmma_pin(grad_p);
        if (kind != TileKind::full) {
          score_gradients<true>(scores, grad_p, dropped, early, no_sums, ahead, grad_scores, work, tile);
        } else {
          score_gradients<false>(scores, grad_p, dropped, early, no_sums, ahead, grad_scores, work, tile);
        }
        if constexpr (kHasLines) release(rings.line_values, tile);
        release(rings.grad_out, tile);

        const auto start_keys = [&] {
          wgmma_pin(dk);
          wgmma_fence();
          multiply_registers<Element, kDim, kBlockQ>(dk, grad_scores, uniform(rings.query_tile(tile)), true);
          wgmma_commit();
        };
        if (sum == nullptr) {
          start_keys();
        } else {
          float dq[kColumns / 2];
          start_query_gradients(dq, tile - 1);
          start_keys();
          wgmma_wait<1>();
          add_query_gradients(dq, tile - 1, sum);  // beside dK
        }
        exchange(grad_scores, tile);
        wgmma_wait<0>();
        wgmma_pin(dk);
        release(rings.query, tile);
        sum = dq_sum(work);
        ++tile;
      }
      if (sum != nullptr) {
        finish_query_gradients(tile - 1, sum);
        add_gradients_of_dk(work, dk);
        if (leader) {
          rings.key.release(tasks);
          rings.value.release(tasks);
        }
        ++tasks;
      }
      write_dk(work, dk);
    }
  }
};

}  // namespace foveal::device

extern "C" __global__ void __cluster_dims__(foveal::device::kClusterSize, 1, 1) __launch_bounds__(foveal::device::kThreads, 1)
    backward_wide_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  using namespace foveal::device;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Rings rings(shared);
  rings.init();
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warp_group == 0) {
    help(args, rings);
  } else {
    registers_increase<kConsumerRegisters>();
    if (warp_group == 2) {
      KeySide(args, rings).run();
    } else {
      ValueSide(args, rings).run();
    }
  }
  cluster_sync();  // nobody arrives any more at a CTA that has ended
}
