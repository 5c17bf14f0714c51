#pragma once
// The AMX backward kernel for scores and masks by programs: amx_backward.h with a tape before and after the vectors, in granules of a tile
// of 64 queries and 32 keys, which tapes want larger than 32 x 32. For each pair of tiles
//
//   for each granule   tape of the scores of this one
//                      S^T, dP^T of the next one               tile instructions, between the rows of
//                      P^T and dS^T of this one                vector instructions
//                      tape of the derivatives; dS^T rounded
//   then               dV, dK, dQ^T of all                     tile instructions
//
// Exponentials are accurate to fp32, as gradients of parameters are sums of unrounded dS.
#include "cpu/kernels/amx_backward_products.h"
#include "cpu/kernels/avx512_exp2.h"

namespace foveal::cpu {
namespace {

template <class Tiles>
class AmxScoredBackward : AmxBackwardProducts<Tiles> {
  using Base = AmxBackwardProducts<Tiles>;
  using Base::add_products, Base::kGranule, Base::kQuarters, Base::q_steps_, Base::run_jobs, Base::v_, Base::v_steps_;

 public:
  static constexpr PackedBackwardOps table() { return AmxBackwardLayout::table_of(0, kScratch, visit); }

 private:
  static constexpr int kLd = Base::kLanes;
  static constexpr int kCells = kGranule * kLd;  ///< of a granule
  static constexpr std::size_t kScratch = 5 * kCells * sizeof(float) + Base::kForms;
  using ScoreSteps = SquareSteps<Tiles, kLd>;

  [[gnu::noinline]] static void visit(const BackwardVisit& visit) {
    AmxScoredBackward pass(visit);
    pass.run();
  }

  explicit AmxScoredBackward(const BackwardVisit& visit)
      : Base(visit, reinterpret_cast<char*>(static_cast<float*>(visit.scratch) + 5 * kCells)),
        cells_(static_cast<float*>(visit.scratch)),
        score_steps_(&this->tiles_) {}

  /// Quarters of the keys by tiles of a pair, in serpentine order.
  struct Granule {
    int index, tiles;
    int quarter() const { return index / tiles; }
    int tile() const { return quarter() % 2 ? tiles - 1 - index % tiles : index % tiles; }
    int slot() const { return index % 2; }
    int first_key() const { return quarter() * kGranule; }
  };

  void run() {
    for (int t = 0; t < v_.count; t += 2) {
      const int tiles = this->parts_of(t) / 2, granules = kQuarters * tiles;
      add_scores(t, {0, tiles});
      run_scores();
      for (int i = 0; i < granules; ++i) {
        const Granule granule{i, tiles};
        if (i + 1 < granules) add_scores(t, {i + 1, tiles});
        if (any_kept(t, granule)) {
          visit_granule(t, granule);
        } else {
          run_scores();
          for (int half = 0; half < 2; ++half) this->clear(granule.quarter(), 2 * granule.tile() + half);
        }
      }
      add_products(t);
      run_jobs();
    }
  }

  bool any_kept(int t, Granule granule) const {
    const LaneRanges& ranges = v_.tiles[t + granule.tile()].ranges;
    return Base::any_kept(ranges, 0, granule.first_key()) || Base::any_kept(ranges, 32, granule.first_key());
  }

  float* scores(int slot) const { return cells_ + slot * 2 * kCells; }
  float* gradients(int slot) const { return scores(slot) + kCells; }
  float* dots() const { return cells_ + 4 * kCells; }

  /// S^T and dP^T of a granule.
  void add_scores(int t, Granule granule) {
    if (!any_kept(t, granule)) return;
    const QueryTile& tile = v_.tiles[t + granule.tile()];
    const auto product = [&](const void* keys, const void* panel, int steps, float* c) {
      const std::int64_t row = steps * kTile;
      for (int column = 0; column < kLd / 16; column += 2)
        score_jobs_.add({c + column * 16, static_cast<const char*>(keys) + granule.quarter() * 2 * row,
                         static_cast<const char*>(panel) + column * row, row, row, 64, steps, 2, false});
    };
    product(v_.k, tile.q_panel, q_steps_, scores(granule.slot()));
    product(v_.v, tile.dout_panel, v_steps_, gradients(granule.slot()));
  }
  void run_scores() {
    score_jobs_.run(score_steps_);
    score_steps_.finish();
  }

  void visit_granule(int t, Granule granule) {
    float *s = scores(granule.slot()), *ds = gradients(granule.slot());
    const BackwardPrograms& programs = *v_.programs;
    if (programs.reads_dots) std::memcpy(dots(), s, kCells * sizeof(float));
    const int tile = t + granule.tile(), keys = programs.score(programs.context, tile, granule.first_key(), s);
    for (int at = keys * kLd; at < kCells; at += 16) _mm512_store_ps(s + at, splat(-__builtin_inff()));
    vectors(v_.tiles[tile], granule, s, ds);
    if (programs.differentiate)
      programs.differentiate(programs.context, tile, granule.first_key(), programs.reads_dots ? dots() : nullptr, ds);
    round(granule, ds);
  }

  /// P^T, rounded, and dS^T in place of dP^T, interleaved with the scores of the next granule.
  [[gnu::noinline]] void vectors(const QueryTile& tile, Granule granule, const float* s, float* ds) {
    ScoreSteps steps = score_steps_;
    steps.start(score_jobs_.jobs);
    const int step_count = score_jobs_.steps;
    const TableExp exp{};
    const __m512 log2e = splat(1.44269504f), natural = splat(v_.multiplier), zero = _mm512_setzero_ps();
    for (int half = 0, due = 0; half < 2; ++half) {
      const int lane = half * 32;
      const __m512 lse_low = _mm512_load_ps(tile.lse + lane), lse_high = _mm512_load_ps(tile.lse + lane + 16);
      const __m512 delta_low = _mm512_load_ps(tile.delta + lane), delta_high = _mm512_load_ps(tile.delta + lane + 16);
      char* p = this->p() + Base::at(granule.quarter(), 2 * granule.tile() + half);
      for (int row = 0; row < kGranule; ++row, p += 64) {
        if (row == 16) p += 3 * kTile;
        for (due += step_count; due >= 2 * kGranule; due -= 2 * kGranule) steps.step();
        const int at = row * kLd + lane;
        const auto vector = [&](int i, __m512 lse, __m512 delta) {
          const __m512 of_pair = exp(_mm512_mul_ps(_mm512_fmsub_ps(_mm512_load_ps(s + i), natural, lse), log2e));
          const __mmask16 any = _mm512_cmp_ps_mask(of_pair, zero, _CMP_NEQ_UQ);
          _mm512_store_ps(ds + i, _mm512_maskz_mul_ps(any, of_pair, _mm512_sub_ps(_mm512_load_ps(ds + i), delta)));
          return of_pair;
        };
        const __m512 low = vector(at, lse_low, delta_low), high = vector(at + 16, lse_high, delta_high);
        _mm512_store_si512(p, round_bf16(low, high));
      }
    }
    steps.finish();
    score_steps_ = steps;
    score_jobs_.clear();
  }

  /// dS^T as both operands.
  [[gnu::noinline]] void round(Granule granule, const float* ds) const {
    for (int half = 0; half < 2; ++half) {
      const int part = 2 * granule.tile() + half;
      char *rows = this->ds() + Base::at(granule.quarter(), part), *pairs = this->pairs_at(granule.quarter(), part);
      const float* from = ds + half * 32;
      for (int row = 0; row < kGranule; row += 2, from += 2 * kLd, rows += 128, pairs += 64) {
        if (row == 16) rows += 3 * kTile;
        const __m512i even = round_bf16(_mm512_load_ps(from), _mm512_load_ps(from + 16));
        const __m512i odd = round_bf16(_mm512_load_ps(from + kLd), _mm512_load_ps(from + kLd + 16));
        _mm512_store_si512(rows, even);
        _mm512_store_si512(rows + 64, odd);
        _mm512_store_si512(pairs, _mm512_unpacklo_epi16(even, odd));
        _mm512_store_si512(pairs + kQuarters * kTile, _mm512_unpackhi_epi16(even, odd));
      }
    }
  }

  float* const cells_;  ///< two slots of S and dP, and dot products
  ScoreSteps score_steps_;
  AmxJobs<8> score_jobs_;
};

}  // namespace
}  // namespace foveal::cpu
