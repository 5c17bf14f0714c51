#pragma once
// A BlockOps table from a class whose static members are the operations, and the operations that all classes share.
#include "cpu/kernels/block_ops.h"
#include "cpu/kernels/rows.h"
#include "cpu/kernels/softmax.h"

namespace foveal::cpu {
namespace {

/// Operations on accumulators and rows, in the type of the vectors.
template <class V, int TileLanes>
struct LaneOps {
  using Real = typename V::Real;
  static constexpr int kTileLanes = TileLanes, kPanelLaneBytes = sizeof(Real), kLaneMultiple = 16;

  static void scale_lanes(Real* acc, int dim, int lanes, const Real* factor) { cpu::scale_lanes<V>(acc, TileLanes, dim, lanes, factor); }
  static void write_lanes(const Real* acc, int dim, const Real* factor, const LaneRowsOut& rows) {
    cpu::write_lanes<V>(acc, TileLanes, dim, factor, rows);
  }
  static void write_keys(const Real* acc, int keys, int dim, Real factor, const KeyRowsOut& rows) {
    cpu::write_keys<V>(acc, keys, dim, factor, rows);
  }
  static void row_dots(const LaneRows& a, const LaneRows& b, int dim, Real* result) { cpu::row_dots<V>(a, b, dim, result); }
};

template <class Ops>
constexpr BlockOps<typename Ops::Real> table_of(const char* name) {
  return {.name = name,
          .tile_lanes = Ops::kTileLanes,
          .block_kv = Ops::kBlockKv,
          .key_multiple = Ops::kKeyMultiple,
          .weights_in_tile = Ops::kWeightsInTile,
          .panel_lane_bytes = Ops::kPanelLaneBytes,
          .lane_multiple = Ops::kLaneMultiple,
          .panel_bytes = Ops::panel_bytes,
          .rows_bytes = Ops::rows_bytes,
          .operand_bytes = Ops::operand_bytes,
          .pack_panel = Ops::pack_panel,
          .pack_rows = Ops::pack_rows,
          .finite = Ops::finite,
          .prepare = Ops::prepare,
          .dot = Ops::dot,
          .mix = Ops::mix,
          .spread = Ops::spread,
          .softmax = Ops::softmax,
          .probabilities = Ops::probabilities,
          .score_gradient = Ops::score_gradient,
          .round_weights = Ops::round_weights,
          .scale_lanes = Ops::scale_lanes,
          .write_lanes = Ops::write_lanes,
          .write_keys = Ops::write_keys,
          .row_dots = Ops::row_dots};
}

}  // namespace
}  // namespace foveal::cpu
