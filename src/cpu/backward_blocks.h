#pragma once
// The backward step of one tile of lanes and one block of keys: P, dP and dS, then the products for dq, dk and dv.
#include <algorithm>
#include <limits>

#include "cpu/backward_pass.h"
#include "cpu/block_scores.h"
#include "cpu/key_sums.h"
#include "cpu/nonfinite.h"

namespace foveal::cpu {

template <class Real>
struct BackwardMemory : CallMemory {
  void* grads = nullptr;  ///< of parameters
  RowScalars<Real> rows;
  KeySums<Real> shared;  ///< of all shares, where there are several
};

template <class Real>
using BackwardCall = BackwardCallOf<Real, BackwardMemory<Real>>;

/// A tile of lanes with its packed operands.
template <class Real>
struct LaneState : TileWalk {
  bool any_empty;  ///< some lane attends to nothing
  bool any_nan;    ///< the lse of some lane is NaN
  bool any_far;    ///< `far` of some lane is not 0
  int first;       ///< offset of lane 0 in the whole tile
  void *q_panel, *dout_panel, *q_rows, *dout_rows;
  NonfiniteRows *nonfinite_q, *nonfinite_dout;  ///< of the tile's rows, where packed for dk and dv
  Real *lse, *delta, *far, *dq;

  LaneState slice(const Setup<Real>& s, int begin, int end) const {
    LaneState part = *this;
    part.lanes = lanes.slice(begin, end);
    part.first += begin;
    part.q_panel = static_cast<char*>(q_panel) + begin * s.ops.panel_lane_bytes;
    part.dout_panel = static_cast<char*>(dout_panel) + begin * s.ops.panel_lane_bytes;
    part.q_rows = static_cast<Real*>(q_rows) + begin * padded_dim(s.dim);
    part.dout_rows = static_cast<Real*>(dout_rows) + begin * padded_dim(s.dim_v);
    part.lse += begin, part.delta += begin, part.far += begin, part.dq += begin;
    return part;
  }
};

template <class Real>
struct BackwardWorker : WorkerOf<LaneState<Real>> {
  Real *p, *ds, *dots, *dropped;
  void *p_spread, *ds_spread, *ds_mix;  ///< weights
  std::int32_t *first, *last;
  Operand *k, *v;  ///< one for each block of a key task
  void *k_scratch, *v_scratch, *k_copy, *k_copy_scratch, *lane_copy;
  NonfiniteRows* nonfinite_k;  ///< of this block, where it is an operand of dq
  KeptPairs* kept;
  KeySums<Real> own;  ///< of this task

  BackwardWorker slice(int begin) const {
    BackwardWorker part = *this;
    part.p += begin, part.ds += begin, part.dots += begin, part.dropped += begin, part.first += begin, part.last += begin;
    part.p_spread = part.dropped, part.ds_spread = part.ds_mix = part.ds;
    return part;
  }
};

/// Which gradients are wanted; ds: any that needs dS.
struct Wanted {
  bool dq, dk, dv, ds;
};

template <class Real>
class BackwardBlocks {
  using Call = BackwardCall<Real>;
  using Tile = LaneState<Real>;
  using Worker = BackwardWorker<Real>;

 public:
  BackwardBlocks(const Setup<Real>& setup, Wanted wanted) : s_(setup), wants_(wanted) {}

  /// blocks: of a key task.
  void lay_out(Layout<Worker>& worker, Layout<Tile>& tile, int blocks) const {
    const auto lanes = static_cast<std::size_t>(s_.ops.tile_lanes), cells = lanes * static_cast<std::size_t>(s_.ops.block_kv);
    tile.bytes(&Tile::q_panel, s_.ops.panel_bytes(s_.dim));
    tile.bytes(&Tile::dout_panel, s_.ops.panel_bytes(s_.dim_v));
    tile.bytes(&Tile::q_rows, s_.ops.rows_bytes(s_.dim));
    tile.bytes(&Tile::dout_rows, s_.ops.rows_bytes(s_.dim_v));
    tile.array(&Tile::lse, lanes);
    tile.array(&Tile::delta, lanes);
    tile.array(&Tile::far, lanes);
    tile.array(&Tile::dq, s_.acc_count(s_.dim));
    tile.array(&Tile::nonfinite_q, 1);
    tile.array(&Tile::nonfinite_dout, 1);

    worker.array(&Worker::p, cells);
    worker.array(&Worker::ds, cells);
    worker.bytes_or_share(s_.tape.backward_needs_dots(), &Worker::dots, cells * sizeof(Real), &Worker::p);
    worker.bytes_or_share(s_.has_dropout(), &Worker::dropped, cells * sizeof(Real), &Worker::p);
    worker.bytes_or_share(!s_.ops.weights_in_tile, &Worker::p_spread, cells * 2, &Worker::dropped);
    worker.bytes_or_share(!s_.ops.weights_in_tile, &Worker::ds_spread, cells * 2, &Worker::ds);
    worker.bytes_or_share(!s_.ops.weights_in_tile, &Worker::ds_mix, cells * 2, &Worker::ds);
    worker.array(&Worker::first, lanes);
    worker.array(&Worker::last, lanes);
    worker.array(&Worker::k, static_cast<std::size_t>(blocks));
    worker.array(&Worker::v, static_cast<std::size_t>(blocks));
    worker.bytes(&Worker::k_scratch, static_cast<std::size_t>(blocks) * operand_bytes(s_.dim));
    worker.bytes(&Worker::v_scratch, static_cast<std::size_t>(blocks) * operand_bytes(s_.dim_v));
    worker.bytes(&Worker::k_copy, s_.copy_bytes(s_.ops.block_kv, s_.dim));
    worker.bytes(&Worker::k_copy_scratch, s_.ops.operand_bytes(s_.dim));
    worker.bytes(&Worker::lane_copy, s_.copy_bytes(s_.ops.tile_lanes, std::max(s_.dim, s_.dim_v)));
    worker.array(&Worker::nonfinite_k, 1);
    worker.array(&Worker::kept, 1);
  }

  /// Packs what the products of a tile read.
  void start(const Call& call, const Sequence& sequence, const LaneTile& tile, bool for_keys, const Worker& worker, Tile& state) const {
    state.start(*call.work, sequence, tile, s_.problem);
    state.first = 0;
    state.any_empty = state.any_nan = state.any_far = false;
    for_each_lane(tile, [&](int lane, std::int32_t head, std::int32_t query) {
      const std::int64_t row = call.rows.index(sequence, head, query);
      state.lse[lane] = call.rows.lse[row];
      state.delta[lane] = call.rows.delta[row];
      state.far[lane] = call.rows.far[row];
      state.any_nan |= std::isnan(state.lse[lane]);
      state.any_far |= state.far[lane] != 0;
      state.any_empty |= call.rows.empty(row);
    });
    for (int lane = tile.lanes(); lane < padded_lanes(tile); ++lane) state.lse[lane] = state.delta[lane] = state.far[lane] = 0;
    const QueryRows rows(call, sequence, tile);
    const LaneRows q_rows = rows.q.in(padded_lanes(tile)), dout_rows = rows.dout.in(padded_lanes(tile));
    s_.ops.pack_panel(q_rows, s_.dim, s_.sign, state.q_panel);
    if (wants_.ds) s_.ops.pack_panel(dout_rows, s_.dim_v, Real(1), state.dout_panel);
    const bool drops = s_.drops_anywhere() || s_.tape.has_mask();
    const auto pack_rows = [&](LaneRows rows, int dim, NonfiniteRows& nonfinite, void* packed) {
      if (drops) nonfinite.take(s_.ops, dim, worker.lane_copy, rows);
      s_.ops.pack_rows(rows, dim, packed);
    };
    state.nonfinite_q->clear();
    state.nonfinite_dout->clear();
    if (for_keys && wants_.dk) pack_rows(q_rows, s_.dim, *state.nonfinite_q, state.q_rows);
    if (for_keys && wants_.dv) pack_rows(dout_rows, s_.dim_v, *state.nonfinite_dout, state.dout_rows);
  }

  struct BlockUse {
    bool mix = false;    ///< for dq too
    bool drops = false;  ///< some pair of the block may be dropped
  };
  /// Prepares a block of keys as operands `at`.
  void prepare(const Call& call, const Sequence& sequence, std::int32_t kv_head, std::int32_t block, BlockUse use, int at,
               Worker& worker) const {
    const int keys = s_.block_keys(sequence, block);
    const std::int64_t key = std::int64_t{block} * s_.ops.block_kv;
    KeyRows k_rows = call.k.block(sequence, key, keys, kv_head);
    worker.k[at] = s_.ops.prepare(k_rows, keys, s_.dim, {.dot = true, .mix = use.mix}, scratch(worker.k_scratch, at, s_.dim));
    worker.nonfinite_k->clear();
    if (use.mix && use.drops) worker.nonfinite_k->take(s_.ops, keys, s_.dim, worker.k_copy, k_rows);
    if (worker.nonfinite_k->any()) {
      const Operand finite = s_.ops.prepare(k_rows, keys, s_.dim, {.mix = true}, worker.k_copy_scratch);
      worker.k[at].mix = finite.mix, worker.k[at].mix_stride = finite.mix_stride;
    }
    worker.v[at] =
        s_.ops.prepare(call.v.block(sequence, key, keys, kv_head), keys, s_.dim_v, {.dot = true}, scratch(worker.v_scratch, at, s_.dim_v));
  }

  /// The step of a tile and the block prepared as operands `at`: adds to dk and dv (unless null) and dq.
  void visit(const Call& call, const Sequence& sequence, const Tile& state, int keys, int at, const TapeGrads* grads,
             const KeySums<Real>& sums, bool with_dq, Worker& worker) const {
    const int ld = s_.ops.tile_lanes;
    const Operand &k = worker.k[at], &v = worker.v[at];
    Real *const dk = sums.dk, *const dv = sums.dv;  // older clangs cannot capture structured bindings
    for_each_slice(s_, sequence, call.data, state, keys, worker, [&](const Tile& lanes, Worker& tiles) {
      const KeyRange range = differentiate(call, sequence, lanes, keys, k, v, grads, tiles);
      if (range.begin == range.end) return;
      const int count = lanes.lanes.padded(), valid = lanes.lanes.count;
      if (dv) s_.ops.spread(tiles.p_spread, lanes.dout_rows, range, count, s_.dim_v, dv);
      if (dk) s_.ops.spread(tiles.ds_spread, lanes.q_rows, range, count, s_.dim, dk);
      if (with_dq) s_.ops.mix(k, tiles.ds_mix, range, count, s_.dim, lanes.dq);
      if (dv && lanes.nonfinite_dout->any())
        lanes.nonfinite_dout->spread(lanes.first, range, *tiles.kept, tiles.dropped, ld, valid, s_.dim_v, s_.has_dropout(), dv);
      if (dk && lanes.nonfinite_q->any())
        lanes.nonfinite_q->spread(lanes.first, range, *tiles.kept, tiles.ds, ld, valid, s_.dim, false, dk);
      if (with_dq && tiles.nonfinite_k->any()) tiles.nonfinite_k->mix(range, *tiles.kept, tiles.ds, ld, valid, s_.dim, false, lanes.dq);
    });
  }

  /// Recomputes the scores of a tile with far rows, for their maxima and sums.
  void measure(const Call& call, const Sequence& sequence, std::int32_t kv_head, const LaneTile& tile, Worker& worker) const {
    Tile& state = worker.tiles[0];
    start(call, sequence, tile, false, worker, state);
    Real *max = state.dq, *sum = max + s_.ops.tile_lanes, *factor = sum + s_.ops.tile_lanes, *lane_max = factor + s_.ops.tile_lanes;
    start_sums(s_, tile, s_.problem.sink >= 0 ? &call.buffers.params[static_cast<std::size_t>(s_.problem.sink)] : nullptr, max, sum);
    for (std::int32_t block = 0; (block = next_block(&state, 1, block)) != BlockCursor::none; ++block) {
      const KeyRange all{0, s_.block_keys(sequence, block)};
      const KeyRows rows = call.k.block(sequence, std::int64_t{block} * s_.ops.block_kv, all.end, kv_head);
      const Operand k = s_.ops.prepare(rows, all.end, s_.dim, {.dot = true}, worker.k_scratch);
      const bool partial = !state.cursor.full();
      if (partial && s_.tape.mask_is_ranges())
        s_.tape.lane_ranges(s_.frame(sequence, state.lanes, block, all), call.data, worker.first, worker.last, worker.tape_scratch);
      const auto found = score_block<Real>(s_, sequence, call.data, {state.lanes, state.q_panel, block, partial}, all, k,
                                           {worker.p, lane_max, worker.first, worker.last, worker.tape_scratch});
      if (found.range.begin == found.range.end) continue;
      s_.ops.softmax(worker.p, found.range, state.lanes.padded(), s_.scale, found.ranges, found.lane_max, max, sum, factor, {});
    }
    call.rows.measured(s_, sequence, tile, max, sum);
  }

 private:
  /// P and dS, in the worker's tiles and weights. The result is the range of keys that any lane attends to.
  KeyRange differentiate(const Call& call, const Sequence& sequence, const Tile& state, int keys, const Operand& k, const Operand& v,
                         const TapeGrads* grads, Worker& worker) const {
    const int ld = s_.ops.tile_lanes, valid = state.lanes.count, lanes = state.lanes.padded();
    const bool partial = !state.cursor.full(), by_ranges = partial && s_.tape.mask_is_ranges();
    KeyRange range{0, keys};
    LaneRanges ranges;
    if (by_ranges || lanes > valid) {
      if (!by_ranges) {
        std::fill_n(worker.first, valid, 0);
        std::fill_n(worker.last, valid, keys);
      }
      std::fill(worker.first + valid, worker.first + lanes, 0);  // padding attends to nothing
      std::fill(worker.last + valid, worker.last + lanes, 0);
      ranges = {worker.first, worker.last};
      range = trim(ranges, valid, s_.ops.key_multiple, range);
      if (range.begin == range.end) return range;
    }
    TileFrame frame = s_.frame(sequence, state.lanes, state.block, range);
    s_.ops.dot(k, state.q_panel, range, lanes, s_.dim, worker.dots);
    if (s_.problem.attention.checked) s_.refuse_fault(frame, call.data, worker.dots + std::ptrdiff_t{range.begin} * ld);
    if (s_.tape.has_score() || (partial && !by_ranges)) {
      const std::ptrdiff_t at = std::ptrdiff_t{range.begin} * ld;
      s_.tape.apply(frame, call.data, worker.dots + at, worker.p + at, partial, static_cast<Real*>(nullptr), worker.tape_scratch);
      if (state.any_empty) remove_empty_lanes(state, range, worker.p);
      if (partial && !by_ranges) {
        range = trim(worker.p, ld, valid, s_.ops.key_multiple, range);
        if (range.begin == range.end) return range;
        frame = s_.frame(sequence, state.lanes, state.block, range);
      }
    } else if (worker.dots != worker.p) {
      copy_tile(worker.dots, range, lanes, worker.p);
    }
    const std::ptrdiff_t at = std::ptrdiff_t{range.begin} * ld;
    const bool own_weights = !s_.ops.weights_in_tile, dropout = s_.has_dropout();
    const bool nonfinite = state.any_nan || worker.nonfinite_k->any() || state.nonfinite_q->any() || state.nonfinite_dout->any();
    if (nonfinite) worker.kept->record(worker.p, ld, range, valid, ranges);
    const Weights p_weights{.mix = nullptr, .spread = own_weights ? worker.p_spread : nullptr};
    s_.ops.probabilities(worker.p, range, lanes, s_.scale, ranges, state.any_far ? state.far : nullptr, state.lse,
                         dropout || nonfinite ? Weights{} : p_weights);
    if (nonfinite) worker.kept->clear_dropped(worker.p, ld, range, valid);
    if (wants_.ds) s_.ops.dot(v, state.dout_panel, range, lanes, s_.dim_v, worker.ds);
    if (dropout) {  // dV uses the dropped P; dS uses P itself, and dP with the same pairs dropped
      copy_tile(worker.p, range, lanes, worker.dropped);
      Real* second = wants_.ds ? worker.ds + at : nullptr;
      apply_dropout<Real>(s_.target, frame, call.dropout, worker.dropped + at, second);
    }
    if (own_weights && (dropout || nonfinite)) s_.ops.round_weights(worker.dropped, range, lanes, p_weights);
    if (wants_.ds) {
      const Weights ds_weights{.mix = own_weights ? worker.ds_mix : nullptr, .spread = own_weights ? worker.ds_spread : nullptr};
      const bool by_tape = s_.tape.has_backward(), round_later = by_tape || nonfinite;
      s_.ops.score_gradient(worker.p, worker.ds, range, lanes, state.delta, round_later ? Weights{} : ds_weights);
      if (by_tape)
        s_.tape.differentiate(frame, call.data, s_.tape.backward_needs_dots() ? worker.dots + at : nullptr, worker.ds + at, grads,
                              worker.tape_scratch);
      if (round_later && own_weights) s_.ops.round_weights(worker.ds, range, lanes, ds_weights);
    }
    return range;
  }

  /// Lanes that attend to nothing were packed as zeros, which score_mod may turn into any score.
  void remove_empty_lanes(const Tile& state, KeyRange range, Real* scores) const {
    for (int lane = 0; lane < state.lanes.count; ++lane) {
      if (state.lse[lane] != std::numeric_limits<Real>::infinity()) continue;
      for (int key = range.begin; key < range.end; ++key) scores[key * s_.ops.tile_lanes + lane] = -std::numeric_limits<Real>::infinity();
    }
  }

  void copy_tile(const Real* from, KeyRange range, int lanes, Real* to) const {
    for (int key = range.begin; key < range.end; ++key) std::copy_n(from + key * s_.ops.tile_lanes, lanes, to + key * s_.ops.tile_lanes);
  }

  /// Memory of operand `at`.
  void* scratch(void* of_all, int at, int dim) const {
    return static_cast<char*>(of_all) + static_cast<std::size_t>(at) * operand_bytes(dim);
  }
  std::size_t operand_bytes(int dim) const { return aligned_bytes(s_.ops.operand_bytes(dim)); }

  const Setup<Real>& s_;
  const Wanted wants_;
};

}  // namespace foveal::cpu
