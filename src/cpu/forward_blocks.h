#pragma once
// What a tile of lanes and a block of keys add to the output: scores, their exponentials, and the product with values, in a thread's tiles;
// and what comes before a tile's first block and after its last.
#include <algorithm>

#include "cpu/block_scores.h"
#include "cpu/forward_pass.h"
#include "cpu/nonfinite.h"
#include "cpu/split_kv.h"

namespace foveal::cpu {

struct ForwardMemory : CallMemory {
  void* splits = nullptr;  ///< acc, max and sum of each tile and split, when there are several
};

template <class Real>
struct ForwardCall : ForwardCallOf<Real, ForwardMemory> {
  ForwardCall(const problem::Buffers& b, const Setup<Real>& s) : ForwardCallOf<Real, ForwardMemory>(b, s), dropout(s.dropout(b.rng)) {}
  TileDropout dropout;
};

template <class Real>
struct ForwardTile : TileWalk, TileSums<Real> {
  void* panel;

  ForwardTile slice(const Setup<Real>&, int begin, int end) const {
    ForwardTile part = *this;
    part.lanes = lanes.slice(begin, end);
    part.panel = static_cast<Real*>(panel) + begin;
    part.acc += begin, part.max += begin, part.sum += begin;
    return part;
  }
};

template <class Real>
struct ForwardSlot : SlotOf<ForwardTile<Real>> {
  Real *scores, *lane_max, *factor;
  void *weights, *k_scratch, *v_scratch, *v_copy;
  void *k_block, *v_block;     ///< of keys in pages, together
  Operand k, v;                ///< this block
  NonfiniteRows* nonfinite_v;  ///< of this block
  KeptPairs* kept;
  std::int32_t *first, *last;

  ForwardSlot slice(int begin) const {
    ForwardSlot part = *this;
    part.scores += begin, part.lane_max += begin, part.factor += begin, part.first += begin, part.last += begin;
    part.weights = part.scores;
    return part;
  }
};

template <class Real>
class ForwardBlocks {
  using Call = ForwardCall<Real>;
  using Tile = ForwardTile<Real>;
  using Slot = ForwardSlot<Real>;

 public:
  explicit ForwardBlocks(const Setup<Real>& setup) : s_(setup) {}

  /// What a tile carries past the blocks.
  std::size_t tile_bytes() const { return s_.ops.panel_bytes(s_.dim) + s_.acc_count(s_.dim_v) * sizeof(Real); }

  void lay_out(Layout<Slot>& slot, Layout<Tile>& tile) const {
    const auto lanes = static_cast<std::size_t>(s_.ops.tile_lanes), cells = lanes * static_cast<std::size_t>(s_.ops.block_kv);
    tile.bytes(&Tile::panel, s_.ops.panel_bytes(s_.dim));
    tile.array(&Tile::acc, s_.acc_count(s_.dim_v));
    tile.array(&Tile::max, lanes);
    tile.array(&Tile::sum, lanes);

    slot.array(&Slot::scores, cells);
    if (s_.ops.weights_in_tile)
      slot.share(&Slot::weights, &Slot::scores);
    else
      slot.bytes(&Slot::weights, cells * 2);
    slot.array(&Slot::lane_max, lanes);
    slot.array(&Slot::factor, lanes);
    slot.array(&Slot::first, lanes);
    slot.array(&Slot::last, lanes);
    slot.bytes(&Slot::k_scratch, s_.ops.operand_bytes(s_.dim));
    slot.bytes(&Slot::v_scratch, s_.ops.operand_bytes(s_.dim_v));
    slot.bytes(&Slot::v_copy, s_.copy_bytes(s_.ops.block_kv, s_.dim_v));
    slot.bytes(&Slot::k_block, KeyBlocks::copy_bytes(s_.problem, s_.ops.block_kv, s_.dim));
    slot.bytes(&Slot::v_block, KeyBlocks::copy_bytes(s_.problem, s_.ops.block_kv, s_.dim_v));
    slot.array(&Slot::nonfinite_v, 1);
    slot.array(&Slot::kept, 1);
  }

  /// Packs the queries of a tile; its sums are those of no key yet.
  void start(const Call& call, const Sequence& sequence, const LaneTile& tile, bool with_sink, Tile& state) const {
    state.start(*call.work, sequence, tile, s_.problem);
    s_.ops.pack_panel(LanePointers(call.q, sequence, tile).in(padded_lanes(tile)), s_.dim, s_.sign, state.panel);
    std::fill_n(state.acc, s_.acc_count(s_.dim_v), Real(0));
    start_sums(s_, tile, with_sink ? call.sink : nullptr, state.max, state.sum);
  }

  /// Makes a block of keys operands of the products. drops: some pair of the block may be dropped.
  void prepare(const Call& call, const Sequence& sequence, std::int32_t kv_head, std::int32_t block, bool drops, Slot& slot) const {
    const int keys = s_.block_keys(sequence, block);
    const std::int64_t key = std::int64_t{block} * s_.ops.block_kv;
    const KeyRows k_rows = call.k.block(sequence, key, keys, kv_head, slot.k_block);
    slot.k = s_.ops.prepare(k_rows, keys, s_.dim, true, false, slot.k_scratch);
    KeyRows v_rows = call.v.block(sequence, key, keys, kv_head, slot.v_block);
    slot.nonfinite_v->clear();
    if (drops) slot.nonfinite_v->take(s_.ops, keys, s_.dim_v, slot.v_copy, v_rows);
    slot.v = s_.ops.prepare(v_rows, keys, s_.dim_v, false, true, slot.v_scratch);
  }

  /// Takes a tile past its next block, which prepare() made operands.
  void visit(const Call& call, const Sequence& sequence, const Tile& state, Slot& slot) const {
    const int keys = s_.block_keys(sequence, state.block);
    for_each_slice(s_, sequence, call.data, state, keys, slot, [&](const Tile& lanes, Slot& tiles) {
      visit_lanes(call, sequence, lanes, {0, keys}, tiles);
    });
  }

  /// Writes the rows of a tile that has met all its keys.
  void finish(const Call& call, const Sequence& sequence, const LaneTile& tile, const TileSums<Real>& sums, Slot& slot) const {
    finish_sums(call, sequence, tile, sums.sum, slot.factor, [&](int lane) { return s_.lse(sums.max[lane], sums.sum[lane]); });
    for (int lane = 0; lane < tile.lanes(); ++lane)
      if (sums.sum[lane] == 0)  // not by a factor of 0: what was never weighted may be NaN
        for (int d = 0; d < s_.dim_v; ++d) sums.acc[d * s_.ops.tile_lanes + lane] = 0;
    s_.ops.write_lanes(sums.acc, s_.dim_v, slot.factor, LanePointers(call.out, sequence, tile).out(padded_lanes(tile)));
  }

 private:
  void visit_lanes(const Call& call, const Sequence& sequence, const Tile& state, KeyRange all, Slot& slot) const {
    const int ld = s_.ops.tile_lanes, valid = state.lanes.count, lanes = state.lanes.padded();
    const BlockLanes at{state.lanes, state.panel, state.block, !state.cursor.full()};
    const auto [range, ranges, lane_max] =
        score_block<Real>(s_, sequence, call.data, at, all, slot.k, {slot.scores, slot.lane_max, slot.first, slot.last, slot.tape_scratch});
    if (range.begin == range.end) return;
    const bool dropout = s_.has_dropout(), nonfinite = slot.nonfinite_v->any();
    if (nonfinite) slot.kept->note(slot.scores, ld, range, valid, ranges);
    const Weights weights{.mix = s_.ops.weights_in_tile ? nullptr : slot.weights};
    if (s_.ops.softmax(slot.scores, range, lanes, s_.scale, ranges, lane_max, state.max, state.sum, slot.factor,
                       dropout || nonfinite ? Weights{} : weights))
      s_.ops.scale_lanes(state.acc, s_.dim_v, lanes, slot.factor);
    if (dropout) {
      const TileFrame kept = s_.frame(sequence, state.lanes, state.block, range);
      apply_dropout<Real>(s_.target, kept, call.dropout, slot.scores + range.begin * ld, nullptr);
    }
    if ((dropout || nonfinite) && weights.mix) s_.ops.round_weights(slot.scores, range, lanes, weights);
    s_.ops.mix(slot.v, slot.weights, range, lanes, s_.dim_v, state.acc);
    if (nonfinite) slot.nonfinite_v->mix(range, *slot.kept, slot.scores, ld, valid, s_.dim_v, dropout, state.acc);
  }

  const Setup<Real>& s_;
};

}  // namespace foveal::cpu
