#pragma once
// The AMX backward kernel, for scores without score_mod and masks that are ranges of keys: a block of 128 keys against pairs of tiles of 64
// queries, in granules of 32 x 32. Scores are S^T (queries in lanes), so that rounded P^T and dS^T are the left operands of their products
// in place, and lse and delta are two vectors of a granule. For each pair of tiles
//
//   for each granule   S^T, dP^T of the next granule           K Q^T, V dO^T             tile instructions, between the rows of
//                      P^T and dS^T of this one                                          vector instructions
//   then               dV, dK, dQ^T of all                     P^T dO, dS^T Q, K^T dS^T  tile instructions
//
// Traffic between L1 and L2 decides its speed:
// - Every operand of a tile instruction is a contiguous tile of 1 KB: keys are packed for all tiles of a block, queries for all blocks.
// - Granules are visited in serpentine order, so that each shares its keys or its queries with the one before.
// - Accumulators of dV and dK are loaded and stored once for 128 queries, those of dQ once for 128 keys. Interleaving the last
//   three products with the vectors too would keep both units busy, but the working set of all five exceeds L1: nearly every tile
//   would then come from L2, two thirds more than now.
// - A product has 2 x 2 accumulators, so that four loads serve four products.
// - dS^T is also the right operand of dQ^T, with pairs of keys side by side. Two unpacks of two rows give that, up to a permutation of the
//   queries, which write_queries() undoes.
// - While AMX is busy, floating-point vectors issue once a cycle and integer ones are free: so the exponential is a conversion
//   and a cubic in the mantissa, five floating-point operations with the score's own, relative error 7.5e-5, a third of a
//   percent of the rounding to bf16 that follows.
#include "cpu/kernels/amx_backward_products.h"

namespace foveal::cpu {
namespace {

/// Parts can be switched off to time them: bench/micro/amx_backward_bench.cpp.
struct AllBackwardParts {
  static constexpr bool scores = true, products = true, vectors = true;
};

template <class Tiles, class Parts = AllBackwardParts>
class AmxBackward : public AmxBackwardProducts<Tiles> {
  using Base = AmxBackwardProducts<Tiles>;
  using Base::add_products, Base::clear, Base::jobs_, Base::kGranule, Base::kQuarters, Base::parts_of, Base::q_steps_, Base::run_jobs;
  using Base::steps_, Base::v_, Base::v_steps_;
  using typename Base::Steps;

 public:
  static constexpr float kUnit = 8388608;  ///< of the exponential's argument: 2^23, so that its integer part lands in the exponent

  [[gnu::noinline]] static void visit(const BackwardVisit& visit) {
    AmxBackward pass(visit);
    pass.run();
  }

  static constexpr PackedBackwardOps table() { return AmxBackwardLayout::table_of(kUnit, kScratch, visit); }

 private:
  static constexpr int kSlot = 8 * kTile;  ///< S and dP of a granule
  static constexpr std::size_t kScratch = 2 * kSlot + Base::kForms;

  explicit AmxBackward(const BackwardVisit& visit)
      : Base(visit, static_cast<char*>(visit.scratch) + 2 * kSlot),
        scratch_(static_cast<char*>(visit.scratch)),
        multiplier_(splat(visit.multiplier)) {}

  /// Of a pair of tiles: a part is 32 queries, a quarter 32 keys. Half of the keys against all queries, then the other half in reverse.
  struct Granule {
    int index, parts;
    int half() const { return index / (2 * parts); }
    int part() const {
      const int forth = index / 2 % parts;
      return half() % 2 ? parts - 1 - forth : forth;
    }
    int quarter() const { return 2 * half() + ((index ^ index >> 1) & 1); }
    int slot() const { return index % 2; }
    int query_tile() const { return part() / 2; }
    int first_lane() const { return part() % 2 * kGranule; }  ///< of the tile
    int first_key() const { return quarter() * kGranule; }    ///< of the block
  };

  void run() {
    add_scores(v_.tiles, {0, parts_of(0)});
    run_jobs();
    for (int t = 0; t < v_.count; t += 2) {
      const QueryTile* pair = v_.tiles + t;
      const int parts = parts_of(t), granules = kQuarters * parts;
      for (int i = 0; i < granules; ++i) {
        const Granule granule{i, parts};
        const QueryTile& tile = pair[granule.query_tile()];
        if (i + 1 < granules) add_scores(pair, {i + 1, parts});
        if (!any_kept(tile, granule)) {
          clear(granule.quarter(), granule.part());
          run_jobs();
        } else if constexpr (Parts::vectors) {
          tile.ranges.first ? vectors<true>(tile, granule) : vectors<false>(tile, granule);
          jobs_.clear();
        } else {
          run_jobs();
        }
      }
      if (Parts::products) add_products(t);
      if (t + 2 < v_.count) add_scores(pair + 2, {0, parts_of(t + 2)});
      run_jobs();
    }
  }
  float* scores(int slot) const { return reinterpret_cast<float*>(scratch_ + slot * kSlot); }
  static bool any_kept(const QueryTile& tile, Granule granule) {
    return Base::any_kept(tile.ranges, granule.first_lane(), granule.first_key());
  }

  /// S^T, then dP^T of a granule: for every 16 queries a pair of tiles.
  void add_scores(const QueryTile* pair, Granule granule) {
    const QueryTile& tile = pair[granule.query_tile()];
    if (!Parts::scores || !any_kept(tile, granule)) return;
    float* const c = scores(granule.slot());
    const auto product = [&](const void* keys, const void* panel, int steps, float* c) {
      const std::int64_t row = steps * kTile;
      jobs_.add({c, static_cast<const char*>(keys) + granule.quarter() * 2 * row,
                 static_cast<const char*>(panel) + granule.first_lane() / 16 * row, row, row, 2 * kTile, steps, 2, false});
    };
    product(v_.k, tile.q_panel, q_steps_, c);
    product(v_.v, tile.dout_panel, v_steps_, c + 1024);
  }
  /// Mask of 16 queries that attend to a key.
  template <bool kRanges>
  static __mmask16 kept(const LaneRanges& ranges, int lane, int key) {
    if constexpr (!kRanges) return 0xffff;
    const __m512i k = _mm512_set1_epi32(key);
    const __mmask16 begun = _mm512_cmp_epi32_mask(_mm512_loadu_si512(ranges.first + lane), k, _MM_CMPINT_LE);
    return _mm512_mask_cmp_epi32_mask(begun, k, _mm512_loadu_si512(ranges.last + lane), _MM_CMPINT_LT);
  }

  /// P^T and dS^T of a granule, interleaved with the scores of the next one, which are done a few rows earlier.
  template <bool kRanges>
  [[gnu::noinline]] void vectors(const QueryTile& tile, Granule granule) {
    constexpr int turns = kGranule / 2, busy = turns * 3 / 4;
    Steps steps = steps_;
    steps.start(jobs_.jobs);
    const int step_count = jobs_.steps, first_key = granule.first_key(), lane = granule.first_lane();
    const float* s = scores(granule.slot());
    const int at = Base::at(granule.quarter(), granule.part());
    char *p = this->p() + at, *ds = this->ds() + at, *pairs = this->pairs_at(granule.quarter(), granule.part());
    const __m512 lse_low = _mm512_load_ps(tile.lse + lane), lse_high = _mm512_load_ps(tile.lse + lane + 16);
    const __m512 delta_low = _mm512_load_ps(tile.delta + lane), delta_high = _mm512_load_ps(tile.delta + lane + 16);
    const __m512 multiplier = multiplier_;
    const __m512 c3 = splat(0.07802452f), c2 = splat(-0.00800641f), c1 = splat(0.47777279f), c0 = splat(0.45213432f);
    const __m512i least = _mm512_set1_epi32(-126 * 8388608), mantissa = _mm512_set1_epi32(0x7fffff), one = _mm512_set1_epi32(0x3f800000);
    // 2^z in fixed point: the bits of z are an exponent and a fraction, which 2^fraction replaces. Zero below -126 and for -inf.
    const auto probability_of = [&](const float* score, __m512 lse, __mmask16 kept, __mmask16* keep) {
      const __m512i n = _mm512_cvtps_epi32(_mm512_fmsub_ps(_mm512_load_ps(score), multiplier, lse));
      *keep = _mm512_mask_cmp_epi32_mask(kept, n, least, _MM_CMPINT_NLT);
      const __m512 x = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(n, mantissa, one, 0xea));
      const __m512 power = _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_fmadd_ps(c3, x, c2), x, c1), x, c0);
      return _mm512_castsi512_ps(_mm512_maskz_add_epi32(*keep, _mm512_castps_si512(power), _mm512_andnot_si512(mantissa, n)));
    };
    const auto gradient_of = [&](const float* score, __m512 delta, __mmask16 keep, __m512 probability) {
      return _mm512_maskz_mul_ps(keep, probability, _mm512_sub_ps(_mm512_load_ps(score + 1024), delta));
    };
    int due = 0;
    for (int row = 0; row < kGranule; row += 2, s += 32, p += 128, ds += 128, pairs += 64) {
      if (row == 16) p += 3 * kTile, ds += 3 * kTile;
      if (row < 2 * busy) {
        for (due += step_count; due >= busy; due -= busy) steps.step();
      } else if (row == 2 * busy) {
        steps.finish();
      }
      __m512i gradients[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const int key = first_key + row + i;
        const float *low = s + 16 * i, *high = low + 512;
        __mmask16 keep_low, keep_high;
        const __m512 p_low = probability_of(low, lse_low, kept<kRanges>(tile.ranges, lane, key), &keep_low);
        const __m512 p_high = probability_of(high, lse_high, kept<kRanges>(tile.ranges, lane + 16, key), &keep_high);
        _mm512_store_si512(p + 64 * i, round_bf16(p_low, p_high));
        gradients[i] = round_bf16(gradient_of(low, delta_low, keep_low, p_low), gradient_of(high, delta_high, keep_high, p_high));
        _mm512_store_si512(ds + 64 * i, gradients[i]);
      }
      _mm512_store_si512(pairs, _mm512_unpacklo_epi16(gradients[0], gradients[1]));
      _mm512_store_si512(pairs + kQuarters * kTile, _mm512_unpackhi_epi16(gradients[0], gradients[1]));
    }
    steps_ = steps;
  }

  char* const scratch_;
  const __m512 multiplier_;
};

}  // namespace
}  // namespace foveal::cpu
