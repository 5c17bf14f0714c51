#pragma once
// BlockOps in fp32 (16-bit tensors are converted as they are packed and written) and fp64.
#include "cpu/kernels/gemm.h"
#include "cpu/kernels/ops_table.h"
#include "cpu/kernels/softmax.h"

namespace foveal::cpu {
namespace {

template <class V, int TileLanes, int BlockKv>
struct PlainOps : LaneOps<V, TileLanes> {
  using Real = typename V::Real;
  using Rounding = WeightsInTile<V>;
  static constexpr int kBlockKv = BlockKv, kKeyMultiple = 1;
  static constexpr bool kWeightsInTile = true;

  static std::size_t panel_bytes(int dim) { return sizeof(Real) * static_cast<std::size_t>(dim) * TileLanes; }
  static std::size_t rows_bytes(int dim) { return sizeof(Real) * static_cast<std::size_t>(padded_dim(dim)) * TileLanes; }
  static std::size_t operand_bytes(int dim) { return sizeof(Real) * static_cast<std::size_t>(padded_dim(dim)) * BlockKv; }

  static void pack_panel(const LaneRows& rows, int dim, Real sign, void* panel) {
    transpose_rows<V>(rows, dim, sign, static_cast<Real*>(panel), TileLanes);
  }
  static void pack_rows(const LaneRows& rows, int dim, void* packed) { copy_lane_rows<V>(rows, dim, static_cast<Real*>(packed)); }
  static bool finite(const LaneRows& rows, int dim) { return finite_rows<V>(rows, dim); }
  static Operand prepare(const KeyRows& rows, int keys, int dim, OperandUse, void* scratch) {
    const bool own_type = rows.dtype == (sizeof(Real) == 8 ? DType::f64 : DType::f32);
    if (own_type && rows.stride == 1 && !rows_alias(rows, keys, dim)) return {rows.data, rows.row_stride, rows.data, rows.row_stride};
    copy_key_rows<V>(rows, keys, dim, static_cast<Real*>(scratch));
    return {scratch, padded_dim(dim), scratch, padded_dim(dim)};
  }

  static void dot(const Operand& keys, const void* panel, KeyRange range, int lanes, int dim, Real* tile) {
    gemm<V, Order::k_contiguous, false>(range.end - range.begin, lanes, dim,
                                        static_cast<const Real*>(keys.dot) + range.begin * keys.dot_stride, keys.dot_stride,
                                        static_cast<const Real*>(panel), TileLanes, tile + range.begin * TileLanes, TileLanes);
  }
  static void mix(const Operand& keys, const void* weights, KeyRange range, int lanes, int dim, Real* acc) {
    gemm<V, Order::m_contiguous, true>(dim, lanes, range.end - range.begin,
                                       static_cast<const Real*>(keys.mix) + range.begin * keys.mix_stride, keys.mix_stride,
                                       static_cast<const Real*>(weights) + range.begin * TileLanes, TileLanes, acc, TileLanes);
  }
  static void spread(const void* weights, const void* rows, KeyRange range, int lanes, int dim, Real* acc) {
    const int ld = padded_dim(dim);
    gemm<V, Order::k_contiguous, true>(range.end - range.begin, ld, lanes, static_cast<const Real*>(weights) + range.begin * TileLanes,
                                       TileLanes, static_cast<const Real*>(rows), ld, acc + std::int64_t{range.begin} * ld, ld);
  }

  static bool softmax(Real* tile, KeyRange range, int lanes, const ScoreScale<Real>& scale, LaneRanges ranges, const Real* lane_max,
                      Real* max, Real* sum, Real* factor, Weights weights) {
    return cpu::softmax<V, Rounding>(tile, TileLanes, range, lanes, scale, ranges, lane_max, max, sum, factor, weights);
  }
  static void probabilities(Real* tile, KeyRange range, int lanes, const ScoreScale<Real>& scale, LaneRanges ranges, const Real* far,
                            const Real* lse, Weights weights) {
    cpu::probabilities<V, Rounding>(tile, TileLanes, range, lanes, scale, ranges, far, lse, weights);
  }
  static void score_gradient(const Real* p, Real* dp, KeyRange range, int lanes, const Real* delta, Weights weights) {
    cpu::score_gradient<V, Rounding>(p, dp, TileLanes, range, lanes, delta, weights);
  }
  static void round_weights(const Real*, KeyRange, int, Weights) {}
};

}  // namespace
}  // namespace foveal::cpu
