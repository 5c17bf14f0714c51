#pragma once
// The products of the AMX backward kernels with rounded probabilities: dV, dK and dQ of a block of 128 keys and a pair of tiles of 64
// queries.
#include <cstring>

#include "cpu/kernels/amx_backward_layout.h"
#include "cpu/kernels/amx_steps.h"
#include "cpu/simd/avx512.h"

namespace foveal::cpu {
namespace {

/// What both backward kernels share: P^T and dS^T of a pair of tiles, rounded, and the products with them.
template <class Tiles>
class AmxBackwardProducts : public AmxBackwardLayout {
 protected:
  using Steps = SquareSteps<Tiles>;

  static constexpr int kGranule = 32, kQuarters = kKeys / kGranule;
  static constexpr int kForm = kQuarters * 8 * kTile;  ///< P or dS of 128 keys and 128 queries
  static constexpr std::size_t kForms = 3 * std::size_t{kForm};

  /// forms: kForms bytes.
  AmxBackwardProducts(const BackwardVisit& visit, char* forms)
      : v_(visit),
        q_steps_(round_up(visit.dim, 32) / 32),
        v_steps_(round_up(visit.dim_v, 32) / 32),
        q_tiles_(round_up(visit.dim, 16) / 16),
        v_tiles_(round_up(visit.dim_v, 16) / 16),
        forms_(forms),
        steps_(&tiles_) {}

  /// Of 32 queries from tile t on: the two tiles of a pair, or the last one.
  int parts_of(int tile) const { return tile + 1 < v_.count ? 4 : 2; }

  /// P^T and dS^T: for every 16 keys four tiles of 16 keys by 32 queries. Pairs of dS^T: for every 16 queries four tiles of pairs of
  /// 32 keys.
  char* p() const { return forms_; }
  char* ds() const { return p() + kForm; }
  char* ds_pairs() const { return ds() + kForm; }
  /// Of 32 keys and 32 queries of the pair. In P^T and in dS^T the next 16 keys are four tiles further.
  static int at(int quarter, int part) { return (quarter * 8 + part) * kTile; }
  char* pairs_at(int quarter, int part) const { return ds_pairs() + (part * 2 * kQuarters + quarter) * kTile; }
  /// Zeros where all pairs are masked.
  void clear(int quarter, int part) {
    for (char* form : {p() + at(quarter, part), ds() + at(quarter, part)})
      for (int tile = 0; tile < 2; ++tile) std::memset(form + 4 * tile * kTile, 0, kTile);
    for (int tile = 0; tile < 2; ++tile) std::memset(pairs_at(quarter, part) + tile * kQuarters * kTile, 0, kTile);
  }

  /// Whether any of 32 queries attends to any of 32 keys, as far as ranges tell.
  static bool any_kept(const LaneRanges& ranges, int first_lane, int first_key) {
    if (!ranges.first) return true;
    const __m512i begin = _mm512_set1_epi32(first_key), end = _mm512_set1_epi32(first_key + kGranule);
    const auto any = [&](int lane) {
      const __mmask16 begun = _mm512_cmp_epi32_mask(_mm512_loadu_si512(ranges.first + lane), end, _MM_CMPINT_LT);
      return _mm512_mask_cmp_epi32_mask(begun, begin, _mm512_loadu_si512(ranges.last + lane), _MM_CMPINT_LT) != 0;
    };
    return any(first_lane) || any(first_lane + 16);
  }

  /// dV, dK and dQ^T of the pair from tile t on.
  void add_products(int t) {
    const QueryTile* pair = v_.tiles + t;
    const int parts = parts_of(t);
    const bool accumulate = t > 0 || !v_.first;
    const QueryTile& last = pair[parts / 2 - 1];
    add_keys(v_.dv, v_tiles_, p(), pair->dout_pairs, last.dout_pairs, parts, accumulate);
    add_keys(v_.dk, q_tiles_, ds(), pair->q_pairs, last.q_pairs, parts, accumulate);
    for (int tile = 0; tile < parts / 2; ++tile) add_queries(pair[tile].dq, ds_pairs() + tile * 4 * kQuarters * kTile);
  }

 private:
  /// dV or dK, half of the keys by all columns at a time. `pairs` are those of the pair's first tile, `more` of its last.
  void add_keys(float* acc, int tiles, const char* weights, const void* pairs, const void* more, int parts, bool accumulate) {
    const std::int64_t jump = static_cast<const char*>(more) - static_cast<const char*>(pairs) - 2 * kTile;
    for (int half = 0; half < kQuarters / 2; ++half) {
      for (int column = 0; column < tiles; column += 2) {
        for (int quarter = 2 * half; quarter < 2 * half + 2; ++quarter)
          jobs_.add({acc + (quarter * tiles + column) * 512, weights + quarter * 8 * kTile,
                     static_cast<const char*>(pairs) + column * 2 * kTile, 4 * kTile, 2 * kTile, 2 * kTile, parts,
                     column + 1 < tiles ? 2 : 1, accumulate, jump});
      }
    }
  }
  /// dQ^T of a tile of queries: for every 32 dims both halves of the queries.
  void add_queries(float* dq, const char* weights) {
    for (int i = 0; i < q_steps_; ++i) {
      for (int column = 0; column < 4; column += 2)
        jobs_.add({dq + (column * q_steps_ + i) * 512, static_cast<const char*>(v_.k_columns) + i * 2 * kQuarters * kTile,
                   weights + column * kQuarters * kTile, kQuarters * kTile, kQuarters * kTile, q_steps_ * 2 * kTile, kQuarters, 2, true});
    }
  }

 protected:
  void run_jobs() {
    jobs_.run(steps_);
    steps_.finish();
  }

  const BackwardVisit& v_;
  const int q_steps_, v_steps_, q_tiles_, v_tiles_;
  char* const forms_;
  Tiles tiles_;
  Steps steps_;
  /// S and dP of a granule; dV and dK of every quarter; dQ of both tiles, in two halves each.
  AmxJobs<2 + (2 * kQuarters + 4) * (max_head_dim / 32)> jobs_;
};

}  // namespace
}  // namespace foveal::cpu
