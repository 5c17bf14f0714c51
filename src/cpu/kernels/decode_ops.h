#pragma once
// BlockOps for tiles of few lanes, as decoding has them. With lanes in vectors most elements would be padding: here the vectors of the
// products run along the head dim, and keys and values are read where they are, in the tensors' own type. The elementwise work between the
// products is that of PlainOps. The panel is [lane][dim rounded up to vectors].
#include "cpu/kernels/plain_ops.h"

namespace foveal::cpu {
namespace {

template <class V, DType stored>
struct DecodeOps : PlainOps<V, 16, 64> {
  using Base = PlainOps<V, 16, 64>;
  using typename Base::Real;
  using Vec = typename V::Vec;
  static constexpr int W = V::width, ld = Base::kTileLanes;
  static constexpr int kLaneMultiple = 1;

  static int panel_dim(int dim) { return round_up(dim, W); }
  static std::size_t panel_bytes(int dim) { return sizeof(Real) * static_cast<std::size_t>(panel_dim(dim)) * DecodeTables::most_lanes; }
  static std::size_t operand_bytes(int dim) { return static_cast<std::size_t>(element_bytes(stored) * dim) * Base::kBlockKv; }

  static void pack_panel(const LaneRows& rows, int dim, Real sign, void* panel) {
    const int row_length = panel_dim(dim);
    for (int lane = 0; lane < DecodeTables::most_lanes; ++lane) {
      Real* to = static_cast<Real*>(panel) + lane * row_length;
      const void* row = lane < rows.lanes ? rows.row[lane] : nullptr;
      for (int d = 0; d < row_length; d += W)
        V::store(to + d, row ? V::mul(load_row<V>(row, rows.dtype, rows.stride, d, dim - d), V::set(sign)) : V::zero());
    }
  }

  static Operand prepare(const KeyRows& rows, int keys, int dim, OperandUse, void* scratch) {
    if (rows.stride == 1) return {rows.data, rows.row_stride, rows.data, rows.row_stride};
    const auto bytes = static_cast<std::size_t>(element_bytes(stored));
    char* to = static_cast<char*>(scratch);
    for (int key = 0; key < keys; ++key)
      for (int d = 0; d < dim; ++d, to += bytes)
        __builtin_memcpy(to, element(rows.data, stored, key * rows.row_stride + d * rows.stride), bytes);
    return {scratch, dim, scratch, dim};
  }

  /// lanes: those that exist. The others of the tile become zeros, as what follows works on whole vectors.
  static void dot(const Operand& keys, const void* panel, KeyRange range, int lanes, int dim, Real* tile) {
    for (int key = range.begin; key < range.end; ++key)
      for (int lane = 0; lane < ld; lane += W) V::store(tile + key * ld + lane, V::zero());
    const Real* q = static_cast<const Real*>(panel);
    each_lanes(lanes, [&]<int kLanes>(int lane) { dot_lanes<kLanes>(keys, q + lane * panel_dim(dim), range, dim, tile + lane); });
  }

  static void mix(const Operand& keys, const void* weights, KeyRange range, int lanes, int dim, Real* acc) {
    const Real* p = static_cast<const Real*>(weights);
    each_lanes(lanes, [&]<int kLanes>(int lane) {
      constexpr int vectors = W >= 16 || kLanes == 1 ? (kLanes <= 2 ? 8 : 4) : 8 / kLanes;  // accumulators: half of the registers
      int d = 0;
      for (; d + vectors * W <= dim; d += vectors * W) mix_dims<kLanes, vectors>(keys, p + lane, range, d, dim, acc + lane);
      if constexpr (vectors > 4)
        if (d + 4 * W <= dim) mix_dims<kLanes, 4>(keys, p + lane, range, d, dim, acc + lane), d += 4 * W;
      for (; d + 2 * W <= dim; d += 2 * W) mix_dims<kLanes, 2>(keys, p + lane, range, d, dim, acc + lane);
      for (; d < dim; d += W) mix_dims<kLanes, 1>(keys, p + lane, range, d, dim, acc + lane);
    });
  }

  /// One lane and two, with keys in vectors: lanes in vectors would take as many operations for one as for all.
  static bool softmax(Real* tile, KeyRange range, int lanes, const ScoreScale<Real>& scale, LaneRanges ranges, const Real* lane_max,
                      Real* max, Real* sum, Real* factor, Weights weights) {
    Scores of_lane[kCompact];
    bool compact = lanes <= kCompact;
    for (int lane = 0; compact && lane < lanes; ++lane) compact = of_lane[lane].gather(tile + lane, range, ranges, lane, scale.unit);
    if (!compact) return Base::softmax(tile, range, round_up(lanes, ld), scale, ranges, lane_max, max, sum, factor, weights);
    bool raised = false;
    for (int lane = 0; lane < lanes; ++lane) raised |= of_lane[lane].top > max[lane] + Real(lazy_growth) / scale.unit_log2;
    for (int lane = 0; raised && lane < ld; ++lane) factor[lane] = 1;
    for (int lane = 0; lane < lanes; ++lane) {
      if (raised && of_lane[lane].top > max[lane]) {
        factor[lane] =
            V::exp2(V::sub(base2<V>(V::set(max[lane]), scale.unit_log2), base2<V>(V::set(of_lane[lane].top), scale.unit_log2)))[0];
        max[lane] = of_lane[lane].top;
        sum[lane] *= factor[lane];
      }
      sum[lane] += of_lane[lane].powers(tile + lane, range, scale.log2, base2<V>(V::set(max[lane]), scale.unit_log2));
    }
    return raised;
  }

 private:
  static constexpr int kCompact = 2;

  /// The scores of a lane, one after the other.
  struct Scores {
    alignas(64) Real score[Base::kBlockKv + W];
    Real top;  ///< the largest, in units

    /// False: it is far.
    bool gather(const Real* column, KeyRange range, const LaneRanges& ranges, int lane, Real unit) {
      const Real none = static_cast<Real>(-__builtin_inff());
      const int count = range.end - range.begin;
      for (int i = 0; i < count; ++i) score[i] = column[(range.begin + i) * ld];
      if (ranges.first)
        for (int i = 0; i < count; ++i)
          if (range.begin + i < ranges.first[lane] || range.begin + i >= ranges.last[lane]) score[i] = none;
      V::storeu(score + count, V::set(none));
      Vec largest = V::set(none);
      for (int i = 0; i < count; i += W) largest = V::max(largest, V::load(score + i));
      top = largest[0];
      for (int i = 1; i < W; ++i) top = top < largest[i] ? largest[i] : top;
      top *= unit;
      return !any_far<V>(V::set(top));
    }
    /// Probabilities, into the column; the result is their sum.
    Real powers(Real* column, KeyRange range, Real log2, Vec max) {
      const int count = range.end - range.begin;
      Vec total = V::zero();
      for (int i = 0; i < count; i += W) {
        const Vec p = V::exp2(V::fms(V::load(score + i), V::set(log2), max));
        V::store(score + i, p);
        total = V::add(total, p);
      }
      for (int i = 0; i < count; ++i) column[(range.begin + i) * ld] = score[i];
      Real sum = 0;
      for (int i = 0; i < W; ++i) sum += total[i];
      return sum;
    }
  };

  /// Calls fn<count>(first) for groups of 4, 2 or 1 lanes. Three count as four: the fourth is a row of zeros.
  template <class Fn>
  static void each_lanes(int lanes, Fn fn) {
    constexpr int most = W < 4 ? W : 4;
    int lane = 0;
    for (; lanes - lane >= most - most / 4; lane += most) fn.template operator()<most>(lane);
    if (lanes - lane >= 2) fn.template operator()<2>(lane), lane += 2;
    if (lanes - lane >= 1) fn.template operator()<1>(lane);
  }

  static Vec load(const char* row, int d, int dim) { return load_row<V>(row, stored, 1, d, dim - d); }

  /// A register for each of some keys and lanes.
  template <int kLanes>
  static void dot_lanes(const Operand& keys, const Real* q, KeyRange range, int dim, Real* tile) {
    constexpr int kKeys = W / kLanes;
    const int q_length = panel_dim(dim);
    for (int key = range.begin; key < range.end; key += kKeys) {
      const char* row[kKeys];
      for (int i = 0; i < kKeys; ++i) {
        const int at = key + i < range.end ? key + i : range.end - 1;
        row[i] = element(keys.dot, stored, at * keys.dot_stride);
      }
      Vec sum[W];
      for (Vec& s : sum) s = V::zero();
      for (int d = 0; d < dim; d += W) {
#pragma GCC unroll 16
        for (int i = 0; i < kKeys; ++i) {
          const Vec x = load(row[i], d, dim);
#pragma GCC unroll 4
          for (int lane = 0; lane < kLanes; ++lane)
            sum[i * kLanes + lane] = V::fma(x, V::load(q + lane * q_length + d), sum[i * kLanes + lane]);
        }
      }
      alignas(64) Real result[W];
      V::store(result, V::sums(sum));
      for (int i = 0; i < kKeys && key + i < range.end; ++i)
        for (int lane = 0; lane < kLanes; ++lane) tile[(key + i) * ld + lane] = result[i * kLanes + lane];
    }
  }

  template <int kLanes, int kVectors>
  static void mix_dims(const Operand& keys, const Real* weights, KeyRange range, int d, int dim, Real* acc) {
    Vec sum[kLanes][kVectors];
    for (auto& of_lane : sum)
      for (Vec& s : of_lane) s = V::zero();
    for (int key = range.begin; key < range.end; ++key) {
      const char* row = element(keys.mix, stored, key * keys.mix_stride);
      Vec p[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) p[lane] = V::set(weights[key * ld + lane]);
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        const Vec x = load(row, d + i * W, dim);
#pragma GCC unroll 4
        for (int lane = 0; lane < kLanes; ++lane) sum[lane][i] = V::fma(p[lane], x, sum[lane][i]);
      }
    }
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < kVectors; ++i) {
        alignas(64) Real result[W];
        V::store(result, sum[lane][i]);
        for (int k = 0; k < W && d + i * W + k < dim; ++k) acc[(d + i * W + k) * ld + lane] += result[k];
      }
  }
};

/// The tables of a vector type: of floats, and of doubles.
template <class F32, class F64>
constexpr DecodeTables decode_tables(const char* f32, const char* bf16, const char* f16, const char* f64) {
  return {.f32 = table_of<DecodeOps<F32, DType::f32>>(f32),
          .bf16 = table_of<DecodeOps<F32, DType::bf16>>(bf16),
          .f16 = table_of<DecodeOps<F32, DType::f16>>(f16),
          .f64 = table_of<DecodeOps<F64, DType::f64>>(f64),
          .f32_lanes = F32::width / 2};
}

}  // namespace
}  // namespace foveal::cpu
