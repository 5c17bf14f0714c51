#pragma once
// Tiles of queries packed for the backward products, with their lse, delta and dq.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/backward_pass.h"
#include "cpu/lane_ranges.h"

namespace foveal::cpu {

struct BackwardTile : TileWalk {
  void *q_panel, *dout_panel, *q_pairs, *dout_pairs;
  float *lse, *delta, *dq;
  std::int32_t *first, *last;  ///< keys of the current block

  QueryTile view(bool all_keys) const {
    return {q_panel, dout_panel, q_pairs, dout_pairs, lse, delta, dq, all_keys ? LaneRanges{} : LaneRanges{first, last}};
  }
};

class PackedQueries {
 public:
  using Tile = BackwardTile;

  PackedQueries(const Setup<float>& setup, const PackedBackwardOps& ops) : s_(setup), ops_(ops) {}

  /// Bytes of a tile and its accumulator.
  std::size_t bytes() const { return 2 * packed_bytes(s_.dim) + 2 * packed_bytes(s_.dim_v) + dq_bytes(); }
  void lay_out(Layout<Tile>& tile) const {
    const auto lanes = static_cast<std::size_t>(ops_.lanes);
    tile.bytes(&Tile::q_panel, packed_bytes(s_.dim));
    tile.bytes(&Tile::dout_panel, packed_bytes(s_.dim_v));
    tile.bytes(&Tile::q_pairs, packed_bytes(s_.dim));
    tile.bytes(&Tile::dout_pairs, packed_bytes(s_.dim_v));
    tile.array(&Tile::lse, lanes);
    tile.array(&Tile::delta, lanes);
    tile.array(&Tile::dq, dq_bytes() / sizeof(float));
    tile.array(&Tile::first, max_lanes);
    tile.array(&Tile::last, max_lanes);
  }

  /// Packs a tile. False: not all is finite, or a row is far.
  template <class Call>
  bool start(const Call& call, const Sequence& sequence, const LaneTile& tile, Tile& state) const {
    state.start(*call.work, sequence, tile, s_.problem);
    std::fill_n(state.lse, ops_.lanes, std::numeric_limits<float>::infinity());
    std::fill_n(state.delta, ops_.lanes, 0.0f);
    std::fill_n(state.dq, dq_bytes() / sizeof(float), 0.0f);
    const double unit = ops_.unit == 0 ? 1 : ScoreScale<float>::kLog2e * static_cast<double>(ops_.unit);
    bool finite = !call.rows.fill(call.buffers, sequence, tile, s_.dim_v, ops_.row_dots);  // the fallback handles far rows too
    for_each_lane(tile, [&](int lane, std::int32_t head, std::int32_t query) {
      const std::int64_t row = call.rows.index(sequence, head, query);
      if (call.rows.empty(row)) return;
      state.lse[lane] = static_cast<float>(static_cast<double>(call.rows.lse[row]) * unit);
      state.delta[lane] = call.rows.delta[row];
      finite &= !std::isnan(state.lse[lane]) && std::isfinite(state.delta[lane]);
    });
    const QueryRows rows(call, sequence, tile);
    finite &= ops_.pack_queries(rows.q.in(ops_.lanes), s_.dim, state.q_panel, state.q_pairs);
    return ops_.pack_queries(rows.dout.in(ops_.lanes), s_.dim_v, state.dout_panel, state.dout_pairs) && finite;
  }

  /// The keys of its block that each query of a tile attends to. False: none.
  template <class Call>
  bool find_ranges(const Call& call, const Sequence& sequence, const Tile& state, void* tape_scratch) const {
    const KeyRange all{0, s_.block_keys(sequence, state.block)};
    std::fill_n(state.first, max_lanes, 0);
    std::fill_n(state.last, max_lanes, all.end);
    if (state.cursor.full()) return true;
    s_.tape.lane_ranges(s_.frame(sequence, state.lanes, state.block, all), call.data, state.first, state.last, tape_scratch);
    const KeyRange kept = trim({state.first, state.last}, state.lanes.count, 1, all);
    return kept.begin < kept.end;
  }

  /// Writes the rows of dq.
  template <class Call>
  void write_dq(const Call& call, const Sequence& sequence, const Tile& state) const {
    ops_.write_queries(state.dq, s_.dim, static_cast<float>(s_.problem.scale),
                       LanePointers(call.dq, sequence, *state.tile).out(ops_.lanes));
  }

 private:
  std::size_t packed_bytes(int dim) const { return ops_.packed_bytes(ops_.lanes, dim); }
  std::size_t dq_bytes() const { return ops_.acc_bytes(ops_.lanes, s_.dim); }

  const Setup<float>& s_;
  const PackedBackwardOps& ops_;
};

}  // namespace foveal::cpu
