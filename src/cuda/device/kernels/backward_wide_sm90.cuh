// Fused attention backward for Hopper, 16-bit types, head dims above 128: a CTA owns 64 keys and values, and two warpgroups share the work on them.
//
// dk and dv of 64 keys fill the registers of a warpgroup each, so one keeps dv (S, dV, dQ: three products a tile) and the other dk (S, dP, dK): both
// compute the scores, which saves every exchange but one: dS^T goes through shared memory to the first, which makes dQ of it one tile later.
//
// config.cuh: Element, SeqlenIndex; kHeadDim, kHeadDimV (multiples of 8), kBlockQ = 64, kStages, kTileSource (a TileSource); kVarlen, kDropout, kReproducible, kCollects, kBinBits.
#include "element.cuh"
#include "ptx/mbarrier.cuh"

#include "config.cuh"

namespace foveal::device {

constexpr int kConsumers = 2;
constexpr int kBlockKv = 64;
constexpr int kReleases = arrivals_of_warps(4);  // each warp for itself: it also reads statistics
constexpr int kAddingWarps = 4;

}  // namespace foveal::device

#include "tile/backward_sm90.cuh"

namespace foveal::device {

static_assert(!kCollects && !kHasLines && kPairTiles == 0, "no warps help here, and shared memory is full");
static_assert(kBlockQ == 64 && chunk_count(kDim) > 2, "narrower heads have a better kernel");

/// Gradients of scores on their way from one warpgroup to the other: two buffers.
constexpr u32 kFullBarrier = 1, kFreeBarrier = 3;

struct ValueSide : BackwardGroup {
  using BackwardGroup::BackwardGroup;

  /// Adds the dQ of a tile.
  FOVEAL_DEVICE void query_gradients(u32 use, float* sum) const {
    named_barrier_sync(kFullBarrier + use % 2, 256);
    const KvTile grad_scores = uniform(rings.grad_score_tile(use));
    if constexpr (kReproducible) rings.turn.wait_full(use);
    query_part<kPartColumns>(grad_scores, sum, 0);
    query_part<kSumColumns - kPartColumns>(grad_scores, sum, 1);
    if constexpr (kReproducible) release(rings.turn, use);
    named_barrier_arrive(kFreeBarrier + use % 2, 256);
  }

  template <int columns>
  FOVEAL_DEVICE void query_part(KvTile grad_scores, float* sum, int part) const {
    float dq[columns / 2];
    wgmma_pin(dq);
    wgmma_fence();
    multiply_columns<Element, columns, kBlockKv>(dq, grad_scores, 0, uniform(rings.key_tile()), kPartColumns * part);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(dq);
    add_dq(sum, part, dq);
  }

  FOVEAL_DEVICE void run() const {
    const bool leader = kEveryLaneArrives || thread == 0;
    u32 tile = 0, tasks = 0;
    int round = -1;
    BackwardTask work;
    named_barrier_arrive(kFreeBarrier, 256);
    named_barrier_arrive(kFreeBarrier + 1, 256);
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
        wgmma_pin(scores);
        wgmma_fence();
        multiply_rows<Element, kBlockQ, kDim>(scores, uniform(rings.key_tile()), 0, uniform(rings.query_tile(tile)));
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(scores);
        if (partial) {
          probabilities<true>(scores, p, dropped, early, factors, ahead, work, tile);
        } else {
          probabilities<false>(scores, p, dropped, early, factors, ahead, work, tile);
        }
        release(rings.query, tile);

        rings.grad_out.wait_full(tile);
        wgmma_pin(dv);
        wgmma_fence();
        multiply_registers<Element, kDimV, kBlockQ>(dv, p, uniform(rings.grad_out_tile(tile)), true);
        wgmma_commit();
        if (sum != nullptr) query_gradients(tile - 1, sum);  // waits for dV as well
        wgmma_wait<0>();
        wgmma_pin(dv);
        release(rings.grad_out, tile);
        sum = dq_sum(work);
        ++tile;
      }
      if (sum != nullptr) {
        query_gradients(tile - 1, sum);
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

struct KeySide : BackwardGroup {
  using BackwardGroup::BackwardGroup;

  FOVEAL_DEVICE void run() const {
    const bool leader = kEveryLaneArrives || thread == 0;
    u32 tile = 0, tasks = 0;
    int round = -1;
    BackwardTask work;
    while (work.next(round, args)) {
      float dk[kDim / 2];
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) dk[i] = 0;
      bool partial, first = true;
      OfHead factors;
      while (work.next_tile(args, partial)) {
        if (first) {
          rings.key.wait_full(tasks);
          rings.value.wait_full(tasks);
          factors = of_head(work);
          first = false;
        }
        follow_head(factors, work);
        float scores[kBlockQ / 2], grad_p[kBlockQ / 2];
        u32 p[kBlockQ / 4], grad_scores[kBlockQ / 4], dropped[kBlockQ / 64];
        EarlyTerms early;
        ReadSums no_sums;
        AheadValues ahead;
        load_ahead(ahead, work, tile, partial);
        rings.query.wait_full(tile);
        wgmma_pin(scores);
        wgmma_fence();
        multiply_rows<Element, kBlockQ, kDim>(scores, uniform(rings.key_tile()), 0, uniform(rings.query_tile(tile)));
        wgmma_commit();
        rings.grad_out.wait_full(tile);
        wgmma_pin(grad_p);
        wgmma_fence();
        multiply_rows<Element, kBlockQ, kDimV>(grad_p, uniform(rings.value_tile()), 0, uniform(rings.grad_out_tile(tile)));
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_pin(scores);
        if (partial) {
          probabilities<true>(scores, p, dropped, early, factors, ahead, work, tile);
        } else {
          probabilities<false>(scores, p, dropped, early, factors, ahead, work, tile);
        }
        wgmma_wait<0>();
        wgmma_pin(grad_p);
        if (partial) {
          score_gradients<true>(scores, grad_p, dropped, early, no_sums, ahead, grad_scores, work, tile);
        } else {
          score_gradients<false>(scores, grad_p, dropped, early, no_sums, ahead, grad_scores, work, tile);
        }
        release(rings.grad_out, tile);

        named_barrier_sync(kFreeBarrier + tile % 2, 256);
        store_fragment<kBlockQ>(uniform(rings.grad_score_tile(tile)), 0, grad_scores, thread);
        fence_async_proxy();
        named_barrier_arrive(kFullBarrier + tile % 2, 256);
        wgmma_pin(dk);
        wgmma_fence();
        multiply_registers<Element, kDim, kBlockQ>(dk, grad_scores, uniform(rings.query_tile(tile)), true);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(dk);
        release(rings.query, tile);
        ++tile;
      }
      if (!first) {
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

extern "C" __global__ void __launch_bounds__(foveal::device::kThreads, 1) backward_wide_sm90(const __grid_constant__ foveal::device::Sm90Args args) {
  using namespace foveal::device;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Rings rings(shared);
  rings.init();
  const int warp_group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warp_group == 0) {
    registers_decrease<24>();
    if (threadIdx.x == 0) produce(args, rings);
    if (kReproducible && threadIdx.x == kWarp) keep_turns(args, rings);
  } else {
    registers_increase<240>();
    if (warp_group == 1) {
      ValueSide(args, rings, 0).run();
    } else {
      KeySide(args, rings, 0).run();
    }
  }
}
