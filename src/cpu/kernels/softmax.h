#pragma once
// The elementwise work between the products. Lanes are columns: maxima, sums, lse and delta are vectors, and no reduction is horizontal.
#include "cpu/kernels/block_ops.h"

namespace foveal::cpu {
namespace {

constexpr int lazy_growth = 8;  ///< log2 by which a score may exceed the maximum in use before that is raised

/// How probabilities become weights: here the tile itself is the weights. Tables with weights of their own supply another such type.
template <class V>
struct WeightsInTile {
  /// Called for one vector column: all rows of the range, in order.
  static void row(const Weights&, int /*key*/, int /*lane*/, typename V::Vec) {}
  static void finish(const Weights&, KeyRange, int /*lane*/) {}
};

/// The largest score of each lane, in units.
template <class V>
void block_max(const typename V::Real* tile, int ld, KeyRange range, int lanes, typename V::Real unit, const LaneRanges& ranges,
               typename V::Real* result) {
  for (int lane = 0; lane < lanes; lane += V::width) {
    typename V::Vec top = V::set(static_cast<typename V::Real>(-__builtin_inff())), other = top;
    int key = range.begin;
    if (ranges.first) {
      for (; key < range.end; ++key)
        top = V::max(top, V::keep_rows(V::load(tile + key * ld + lane), key, ranges.first + lane, ranges.last + lane));
    } else {
      for (; key + 1 < range.end; key += 2) {
        top = V::max(top, V::load(tile + key * ld + lane));
        other = V::max(other, V::load(tile + (key + 1) * ld + lane));
      }
      if (key < range.end) top = V::max(top, V::load(tile + key * ld + lane));
    }
    V::store(result + lane, V::mul(V::max(top, other), V::set(unit)));
  }
}

/// Whether some maximum is far (far_units). Infinities are not.
template <class V>
bool any_far(typename V::Vec max) {
  const typename V::Vec size = V::max(max, V::sub(V::zero(), max));
  return V::any_greater(V::fma(size, V::zero(), size), V::set(typename V::Real(far_units)));
}

/// Maxima in base 2, clamped to finite numbers: -inf - -inf would be NaN. A NaN stays.
template <class V>
typename V::Vec base2(typename V::Vec max, typename V::Real unit_log2) {
  const typename V::Real least = sizeof(typename V::Real) == 8 ? -__DBL_MAX__ : -__FLT_MAX__;
  return V::max(V::set(least), V::mul(max, V::set(unit_log2)));
}

/// tile = scores in units - far. In two passes: a fused multiply-subtract would not round the score, but the maximum has been rounded.
template <class V>
[[gnu::noinline]] void subtract_far(typename V::Real* tile, int ld, KeyRange range, int lanes, typename V::Real unit,
                                    const typename V::Real* far) {
  for (int key = range.begin; key < range.end; ++key)
    for (int lane = 0; lane < lanes; lane += V::width)
      V::store(tile + key * ld + lane, V::mul(V::load(tile + key * ld + lane), V::set(unit)));
  asm volatile("" ::: "memory");
  for (int key = range.begin; key < range.end; ++key)
    for (int lane = 0; lane < lanes; lane += V::width)
      V::store(tile + key * ld + lane, V::sub(V::load(tile + key * ld + lane), V::load(far + lane)));
}
/// The same for lanes whose maximum is far; their top becomes 0.
template <class V>
[[gnu::noinline]] void subtract_far_maxima(typename V::Real* tile, int ld, KeyRange range, int lanes, typename V::Real unit,
                                           const typename V::Real* max, typename V::Real* top) {
  alignas(64) typename V::Real far[128];
  for (int lane = 0; lane < lanes; ++lane) {
    far[lane] = 0;
    if (max[lane] < far_units && max[lane] > -far_units) continue;
    far[lane] = max[lane];
    top[lane] = 0;
  }
  subtract_far<V>(tile, ld, range, lanes, unit, far);
}

template <class V, class Rounding>
bool softmax(typename V::Real* tile, int ld, KeyRange range, int lanes, const ScoreScale<typename V::Real>& scale, LaneRanges ranges,
             const typename V::Real* lane_max, typename V::Real* max, typename V::Real* sum, typename V::Real* factor,
             const Weights& weights) {
  using Real = typename V::Real;
  using Vec = typename V::Vec;
  alignas(64) Real own_max[128], tops[128];
  if (!lane_max) {
    block_max<V>(tile, ld, range, lanes, scale.unit, ranges, own_max);
    lane_max = own_max;
  }
  const Real unit_log2 = scale.unit_log2;
  const Vec growth = V::set(Real(lazy_growth) / unit_log2);
  bool raised = false, far = false;
  for (int lane = 0; lane < lanes; lane += V::width) {
    raised |= V::any_greater(V::load(lane_max + lane), V::add(V::load(max + lane), growth));
    far |= any_far<V>(V::load(lane_max + lane));
  }
  if (raised) {
    for (int lane = 0; lane < lanes; lane += V::width) {
      const Vec before = V::load(max + lane), after = V::max(before, V::load(lane_max + lane));
      const Vec rescale =
          V::exp2(far ? V::mul(V::sub(before, after), V::set(unit_log2)) : V::sub(base2<V>(before, unit_log2), base2<V>(after, unit_log2)));
      V::store(max + lane, after);
      V::store(factor + lane, rescale);
      V::store(sum + lane, V::mul(V::load(sum + lane), rescale));
    }
  }
  for (int lane = 0; lane < lanes; lane += V::width) V::store(tops + lane, base2<V>(V::load(max + lane), unit_log2));
  if (far) subtract_far_maxima<V>(tile, ld, range, lanes, scale.unit, max, tops);
  const Vec m = V::set(far ? unit_log2 : scale.log2);
  for (int lane = 0; lane < lanes; lane += V::width) {
    const Vec top = V::load(tops + lane);
    Vec total = V::zero();
    Real* column = tile + lane;
    for (int key = range.begin; key < range.end; ++key) {
      Vec s = V::load(column + key * ld);
      if (ranges.first) s = V::keep_rows(s, key, ranges.first + lane, ranges.last + lane);
      const Vec p = V::exp2(V::fms(s, m, top));
      V::store(column + key * ld, p);
      total = V::add(total, p);
      if (weights.mix) Rounding::row(weights, key, lane, p);
    }
    if (weights.mix) Rounding::finish(weights, range, lane);
    V::store(sum + lane, V::add(V::load(sum + lane), total));
  }
  return raised;
}

template <class V, class Rounding>
void probabilities(typename V::Real* tile, int ld, KeyRange range, int lanes, const ScoreScale<typename V::Real>& scale, LaneRanges ranges,
                   const typename V::Real* far, const typename V::Real* lse, const Weights& weights) {
  using Vec = typename V::Vec;
  if (far) subtract_far<V>(tile, ld, range, lanes, scale.unit, far);
  const Vec m = V::set(far ? scale.unit_natural : scale.natural), log2e = V::set(static_cast<typename V::Real>(1.4426950408889634074));
  for (int lane = 0; lane < lanes; lane += V::width) {
    const Vec top = V::load(lse + lane);
    typename V::Real* column = tile + lane;
    for (int key = range.begin; key < range.end; ++key) {
      Vec s = V::load(column + key * ld);
      if (ranges.first) s = V::keep_rows(s, key, ranges.first + lane, ranges.last + lane);
      const Vec p = V::exp2(V::mul(V::fms(s, m, top), log2e));
      V::store(column + key * ld, p);
      if (weights.spread) Rounding::row(weights, key, lane, p);
    }
    if (weights.spread) Rounding::finish(weights, range, lane);
  }
}

template <class V, class Rounding>
void score_gradient(const typename V::Real* p, typename V::Real* dp, int ld, KeyRange range, int lanes, const typename V::Real* delta,
                    const Weights& weights) {
  using Vec = typename V::Vec;
  for (int lane = 0; lane < lanes; lane += V::width) {
    const Vec shift = V::load(delta + lane);
    for (int key = range.begin; key < range.end; ++key) {
      const int at = key * ld + lane;
      const Vec prob = V::load(p + at);
      const Vec ds = V::clear_where_zero(V::mul(prob, V::sub(V::load(dp + at), shift)), prob);
      V::store(dp + at, ds);
      if (weights.spread) Rounding::row(weights, key, lane, ds);
    }
    if (weights.spread) Rounding::finish(weights, range, lane);
  }
}

template <class V>
void scale_lanes(typename V::Real* acc, int ld, int dim, int lanes, const typename V::Real* factor) {
  for (int d = 0; d < dim; ++d)
    for (int lane = 0; lane < lanes; lane += V::width)
      V::store(acc + d * ld + lane, V::mul(V::load(acc + d * ld + lane), V::load(factor + lane)));
}

}  // namespace
}  // namespace foveal::cpu
