#pragma once
// What a tile of lanes and a block of keys add to the gradients: P, dP and dS of their pairs in a thread's tiles, then the products that take
// them.
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
  KeySums<Real> shared;  ///< of all shares, when there are several
};

template <class Real>
struct BackwardCall : BackwardCallOf<Real, BackwardMemory<Real>> {
  BackwardCall(const problem::Buffers& b, const Setup<Real>& s)
      : BackwardCallOf<Real, BackwardMemory<Real>>(b, s), dropout(s.dropout(b.rng)) {}
  TileDropout dropout;
};

/// A tile of lanes with everything that its products read.
template <class Real>
struct LaneState : TileWalk {
  bool any_empty;  ///< some lane has nothing to attend
  bool any_nan;    ///< the lse of some lane is NaN
  bool any_far;    ///< `far` of some lane is not 0
  int first;       ///< lane of the tile that is lane 0 here
  void *q_panel, *dout_panel, *q_rows, *dout_rows;
  NonfiniteRows *nonfinite_q, *nonfinite_dout;  ///< of the tile's rows, where packed for dk and dv
  Real *lse, *delta, *far, *dq;

  LaneState slice(const Setup<Real>& s, int begin, int end) const {
    LaneState part = *this;
    part.lanes = lanes.slice(begin, end);
    part.first += begin;
    part.q_panel = static_cast<Real*>(q_panel) + begin, part.dout_panel = static_cast<Real*>(dout_panel) + begin;
    part.q_rows = static_cast<Real*>(q_rows) + begin * padded_dim(s.dim);
    part.dout_rows = static_cast<Real*>(dout_rows) + begin * padded_dim(s.dim_v);
    part.lse += begin, part.delta += begin, part.far += begin, part.dq += begin;
    return part;
  }
};

template <class Real>
struct BackwardSlot : SlotOf<LaneState<Real>> {
  Real *p, *ds, *dots, *dropped;
  void *p_spread, *ds_spread, *ds_mix;  ///< weights
  std::int32_t *first, *last;
  Operand *k, *v;  ///< one for each block of a key task
  void *k_scratch, *v_scratch, *k_copy, *k_copy_scratch, *lane_copy;
  NonfiniteRows* nonfinite_k;  ///< of this block, where it is mixed into dq
  KeptPairs* kept;
  KeySums<Real> own;  ///< of this task

  BackwardSlot slice(int begin) const {
    BackwardSlot part = *this;
    part.p += begin, part.ds += begin, part.dots += begin, part.dropped += begin, part.first += begin, part.last += begin;
    part.p_spread = part.dropped, part.ds_spread = part.ds_mix = part.ds;
    return part;
  }
};

/// Gradients that are asked for; ds: what any but dv takes.
struct Wanted {
  bool dq, dk, dv, ds;
};

template <class Real>
class BackwardBlocks {
  using Call = BackwardCall<Real>;
  using Tile = LaneState<Real>;
  using Slot = BackwardSlot<Real>;

 public:
  BackwardBlocks(const Setup<Real>& setup, Wanted wanted) : s_(setup), wants_(wanted) {}

  /// blocks: of a key task.
  void lay_out(Layout<Slot>& slot, Layout<Tile>& tile, int blocks) const {
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

    const auto own = [&](bool has, auto member, auto otherwise, std::size_t bytes) {
      has ? slot.bytes(member, bytes) : slot.share(member, otherwise);
    };
    slot.array(&Slot::p, cells);
    slot.array(&Slot::ds, cells);
    own(s_.tape.backward_needs_dots(), &Slot::dots, &Slot::p, cells * sizeof(Real));
    own(s_.has_dropout(), &Slot::dropped, &Slot::p, cells * sizeof(Real));
    own(!s_.ops.weights_in_tile, &Slot::p_spread, &Slot::dropped, cells * 2);
    own(!s_.ops.weights_in_tile, &Slot::ds_spread, &Slot::ds, cells * 2);
    own(!s_.ops.weights_in_tile, &Slot::ds_mix, &Slot::ds, cells * 2);
    slot.array(&Slot::first, lanes);
    slot.array(&Slot::last, lanes);
    slot.array(&Slot::k, static_cast<std::size_t>(blocks));
    slot.array(&Slot::v, static_cast<std::size_t>(blocks));
    slot.bytes(&Slot::k_scratch, static_cast<std::size_t>(blocks) * operand_bytes(s_.dim));
    slot.bytes(&Slot::v_scratch, static_cast<std::size_t>(blocks) * operand_bytes(s_.dim_v));
    slot.bytes(&Slot::k_copy, s_.copy_bytes(s_.ops.block_kv, s_.dim));
    slot.bytes(&Slot::k_copy_scratch, s_.ops.operand_bytes(s_.dim));
    slot.bytes(&Slot::lane_copy, s_.copy_bytes(s_.ops.tile_lanes, std::max(s_.dim, s_.dim_v)));
    slot.array(&Slot::nonfinite_k, 1);
    slot.array(&Slot::kept, 1);
  }

  /// Packs what the products of a tile read.
  void start(const Call& call, const Sequence& sequence, const LaneTile& tile, bool for_keys, const Slot& slot, Tile& state) const {
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
      if (drops) nonfinite.take(s_.ops, dim, slot.lane_copy, rows);
      s_.ops.pack_rows(rows, dim, packed);
    };
    state.nonfinite_q->clear();
    state.nonfinite_dout->clear();
    if (for_keys && wants_.dk) pack_rows(q_rows, s_.dim, *state.nonfinite_q, state.q_rows);
    if (for_keys && wants_.dv) pack_rows(dout_rows, s_.dim_v, *state.nonfinite_dout, state.dout_rows);
  }

  /// Makes a block of keys the operands `at`. mix: for dq, too. drops: some pair of the block may be dropped.
  void prepare(const Call& call, const Sequence& sequence, std::int32_t kv_head, std::int32_t block, bool mix, bool drops, int at,
               Slot& slot) const {
    const int keys = s_.block_keys(sequence, block);
    const std::int64_t key = std::int64_t{block} * s_.ops.block_kv;
    KeyRows k_rows = call.k.block(sequence, key, keys, kv_head);
    slot.k[at] = s_.ops.prepare(k_rows, keys, s_.dim, true, mix, scratch(slot.k_scratch, at, s_.dim));
    slot.nonfinite_k->clear();
    if (mix && drops) slot.nonfinite_k->take(s_.ops, keys, s_.dim, slot.k_copy, k_rows);
    if (slot.nonfinite_k->any()) {
      const Operand finite = s_.ops.prepare(k_rows, keys, s_.dim, false, true, slot.k_copy_scratch);
      slot.k[at].mix = finite.mix, slot.k[at].mix_stride = finite.mix_stride;
    }
    slot.v[at] =
        s_.ops.prepare(call.v.block(sequence, key, keys, kv_head), keys, s_.dim_v, true, false, scratch(slot.v_scratch, at, s_.dim_v));
  }

  /// What a tile adds to dk, dv (null: nothing) and dq with the block that is the operands `at`.
  void visit(const Call& call, const Sequence& sequence, const Tile& state, int keys, int at, const TapeGrads* grads,
             const KeySums<Real>& sums, bool with_dq, Slot& slot) const {
    const int ld = s_.ops.tile_lanes;
    const Operand &k = slot.k[at], &v = slot.v[at];
    Real *const dk = sums.dk, *const dv = sums.dv;  // no structured binding: older clangs capture none
    for_each_slice(s_, sequence, call.data, state, keys, slot, [&](const Tile& lanes, Slot& tiles) {
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

  /// A tile with far rows: their scores once more, for maxima and sums.
  void measure(const Call& call, const Sequence& sequence, std::int32_t kv_head, const LaneTile& tile, Slot& slot) const {
    Tile& state = slot.tiles[0];
    start(call, sequence, tile, false, slot, state);
    Real *max = state.dq, *sum = max + s_.ops.tile_lanes, *factor = sum + s_.ops.tile_lanes, *lane_max = factor + s_.ops.tile_lanes;
    start_sums(s_, tile, s_.problem.sink >= 0 ? &call.buffers.params[static_cast<std::size_t>(s_.problem.sink)] : nullptr, max, sum);
    for (std::int32_t block = 0; (block = next_block(&state, 1, block)) != BlockCursor::none; ++block) {
      const KeyRange all{0, s_.block_keys(sequence, block)};
      const KeyRows rows = call.k.block(sequence, std::int64_t{block} * s_.ops.block_kv, all.end, kv_head);
      const Operand k = s_.ops.prepare(rows, all.end, s_.dim, true, false, slot.k_scratch);
      const bool partial = !state.cursor.full();
      if (partial && s_.tape.mask_is_ranges())
        s_.tape.lane_ranges(s_.frame(sequence, state.lanes, block, all), call.data, slot.first, slot.last, slot.tape_scratch);
      const auto found = score_block<Real>(s_, sequence, call.data, {state.lanes, state.q_panel, block, partial}, all, k,
                                           {slot.p, lane_max, slot.first, slot.last, slot.tape_scratch});
      if (found.range.begin == found.range.end) continue;
      s_.ops.softmax(slot.p, found.range, state.lanes.padded(), s_.scale, found.ranges, found.lane_max, max, sum, factor, {});
    }
    call.rows.measured(s_, sequence, tile, max, sum);
  }

 private:
  /// P and dS of lanes and block, in the slot's tiles and weights. The result is the range of keys that take part.
  KeyRange differentiate(const Call& call, const Sequence& sequence, const Tile& state, int keys, const Operand& k, const Operand& v,
                         const TapeGrads* grads, Slot& slot) const {
    const int ld = s_.ops.tile_lanes, valid = state.lanes.count, lanes = state.lanes.padded();
    const bool partial = !state.cursor.full(), by_ranges = partial && s_.tape.mask_is_ranges();
    KeyRange range{0, keys};
    LaneRanges ranges;
    if (by_ranges || lanes > valid) {
      if (!by_ranges) {
        std::fill_n(slot.first, valid, 0);
        std::fill_n(slot.last, valid, keys);
      }
      std::fill(slot.first + valid, slot.first + lanes, 0);  // padding keeps nothing
      std::fill(slot.last + valid, slot.last + lanes, 0);
      ranges = {slot.first, slot.last};
      range = trim(ranges, valid, s_.ops.key_multiple, range);
      if (range.begin == range.end) return range;
    }
    TileFrame frame = s_.frame(sequence, state.lanes, state.block, range);
    s_.ops.dot(k, state.q_panel, range, lanes, s_.dim, slot.dots);
    if (s_.tape.has_score() || (partial && !by_ranges)) {
      const std::ptrdiff_t at = std::ptrdiff_t{range.begin} * ld;
      s_.tape.apply(frame, call.data, slot.dots + at, slot.p + at, partial, static_cast<Real*>(nullptr), slot.tape_scratch);
      if (state.any_empty) remove_empty_lanes(state, range, slot.p);
      if (partial && !by_ranges) {
        range = trim(slot.p, ld, valid, s_.ops.key_multiple, range);
        if (range.begin == range.end) return range;
        frame = s_.frame(sequence, state.lanes, state.block, range);
      }
    } else if (slot.dots != slot.p) {
      copy_tile(slot.dots, range, lanes, slot.p);
    }
    const std::ptrdiff_t at = std::ptrdiff_t{range.begin} * ld;
    const bool own_weights = !s_.ops.weights_in_tile, dropout = s_.has_dropout();
    const bool nonfinite = state.any_nan || slot.nonfinite_k->any() || state.nonfinite_q->any() || state.nonfinite_dout->any();
    if (nonfinite) slot.kept->note(slot.p, ld, range, valid, ranges);
    const Weights p_weights{.mix = nullptr, .spread = own_weights ? slot.p_spread : nullptr};
    s_.ops.probabilities(slot.p, range, lanes, s_.scale, ranges, state.any_far ? state.far : nullptr, state.lse,
                         dropout || nonfinite ? Weights{} : p_weights);
    if (nonfinite) slot.kept->clear_dropped(slot.p, ld, range, valid);
    if (wants_.ds) s_.ops.dot(v, state.dout_panel, range, lanes, s_.dim_v, slot.ds);
    if (dropout) {  // dropped is what dV takes; dS takes P itself, and dP with the same pairs dropped
      copy_tile(slot.p, range, lanes, slot.dropped);
      Real* second = wants_.ds ? slot.ds + at : nullptr;
      apply_dropout<Real>(s_.target, frame, call.dropout, slot.dropped + at, second);
    }
    if (own_weights && (dropout || nonfinite)) s_.ops.round_weights(slot.dropped, range, lanes, p_weights);
    if (wants_.ds) {
      const Weights ds_weights{.mix = own_weights ? slot.ds_mix : nullptr, .spread = own_weights ? slot.ds_spread : nullptr};
      const bool by_tape = s_.tape.has_backward(), round_later = by_tape || nonfinite;
      s_.ops.score_gradient(slot.p, slot.ds, range, lanes, state.delta, round_later ? Weights{} : ds_weights);
      if (by_tape)
        s_.tape.differentiate(frame, call.data, s_.tape.backward_needs_dots() ? slot.dots + at : nullptr, slot.ds + at, grads,
                              slot.tape_scratch);
      if (round_later && own_weights) s_.ops.round_weights(slot.ds, range, lanes, ds_weights);
    }
    return range;
  }

  /// The dot products of a lane with nothing to attend were taken with zeros, of which a score may make anything.
  void remove_empty_lanes(const Tile& state, KeyRange range, Real* scores) const {
    for (int lane = 0; lane < state.lanes.count; ++lane) {
      if (state.lse[lane] != std::numeric_limits<Real>::infinity()) continue;
      for (int key = range.begin; key < range.end; ++key) scores[key * s_.ops.tile_lanes + lane] = -std::numeric_limits<Real>::infinity();
    }
  }

  void copy_tile(const Real* from, KeyRange range, int lanes, Real* to) const {
    for (int key = range.begin; key < range.end; ++key) std::copy_n(from + key * s_.ops.tile_lanes, lanes, to + key * s_.ops.tile_lanes);
  }

  /// Where the operand `at` is made.
  void* scratch(void* of_all, int at, int dim) const {
    return static_cast<char*>(of_all) + static_cast<std::size_t>(at) * operand_bytes(dim);
  }
  std::size_t operand_bytes(int dim) const { return aligned_bytes(s_.ops.operand_bytes(dim)); }

  const Setup<Real>& s_;
  const Wanted wants_;
};

}  // namespace foveal::cpu
