#pragma once
// The forward step of one tile of lanes and one block of keys: scores, online softmax, product with V; and a tile's prologue and epilogue.
#include <algorithm>

#include "cpu/block_scores.h"
#include "cpu/forward_pass.h"
#include "cpu/nonfinite.h"
#include "cpu/split_kv.h"

namespace foveal::cpu {

struct ForwardMemory : CallMemory {
  void* splits = nullptr;  ///< acc, max and sum of each tile and split, with split-KV
};

template <class Real>
using ForwardCall = ForwardCallOf<Real, ForwardMemory>;

template <class Real>
struct ForwardTile : TileWalk, TileSums<Real> {
  void* panel;

  ForwardTile slice(const Setup<Real>& s, int begin, int end) const {
    ForwardTile part = *this;
    part.lanes = lanes.slice(begin, end);
    part.panel = static_cast<char*>(panel) + begin * s.ops.panel_lane_bytes;
    part.acc += begin, part.max += begin, part.sum += begin;
    return part;
  }
};

template <class Real>
struct ForwardWorker : WorkerOf<ForwardTile<Real>> {
  Real *scores, *lane_max, *factor;
  void *weights, *k_scratch, *v_scratch, *v_copy;
  void *k_block, *v_block;     ///< copies of blocks that span pages
  Operand k, v;                ///< this block
  NonfiniteRows* nonfinite_v;  ///< of this block
  KeptPairs* kept;
  std::int32_t *first, *last;

  ForwardWorker slice(int begin) const {
    ForwardWorker part = *this;
    part.scores += begin, part.lane_max += begin, part.factor += begin, part.first += begin, part.last += begin;
    part.weights = part.scores;
    return part;
  }
};

template <class Real>
class ForwardBlocks {
  using Call = ForwardCall<Real>;
  using Tile = ForwardTile<Real>;
  using Worker = ForwardWorker<Real>;

 public:
  explicit ForwardBlocks(const Setup<Real>& setup) : s_(setup) {}

  /// State of a tile.
  std::size_t tile_bytes() const { return s_.ops.panel_bytes(s_.dim) + s_.acc_count(s_.dim_v) * sizeof(Real); }

  void lay_out(Layout<Worker>& worker, Layout<Tile>& tile) const {
    const auto lanes = static_cast<std::size_t>(s_.ops.tile_lanes), cells = lanes * static_cast<std::size_t>(s_.ops.block_kv);
    tile.bytes(&Tile::panel, s_.ops.panel_bytes(s_.dim));
    tile.array(&Tile::acc, s_.acc_count(s_.dim_v));
    tile.array(&Tile::max, lanes);
    tile.array(&Tile::sum, lanes);

    worker.array(&Worker::scores, cells);
    worker.bytes_or_share(!s_.ops.weights_in_tile, &Worker::weights, cells * 2, &Worker::scores);
    worker.array(&Worker::lane_max, lanes);
    worker.array(&Worker::factor, lanes);
    worker.array(&Worker::first, lanes);
    worker.array(&Worker::last, lanes);
    worker.bytes(&Worker::k_scratch, s_.ops.operand_bytes(s_.dim));
    worker.bytes(&Worker::v_scratch, s_.ops.operand_bytes(s_.dim_v));
    worker.bytes(&Worker::v_copy, s_.copy_bytes(s_.ops.block_kv, s_.dim_v));
    worker.bytes(&Worker::k_block, KeyBlocks::copy_bytes(s_.problem, s_.ops.block_kv, s_.dim));
    worker.bytes(&Worker::v_block, KeyBlocks::copy_bytes(s_.problem, s_.ops.block_kv, s_.dim_v));
    worker.array(&Worker::nonfinite_v, 1);
    worker.array(&Worker::kept, 1);
  }

  /// Prologue: packs the queries of a tile and clears its sums.
  void start(const Call& call, const Sequence& sequence, const LaneTile& tile, bool with_sink, Tile& state) const {
    state.start(*call.work, sequence, tile, s_.problem);
    s_.ops.pack_panel(LanePointers(call.q, sequence, tile).in(padded_lanes(tile)), s_.dim, s_.sign, state.panel);
    std::fill_n(state.acc, s_.acc_count(s_.dim_v), Real(0));
    start_sums(s_, tile, with_sink ? call.sink : nullptr, state.max, state.sum);
  }

  /// Prepares a block of keys for the products. drops: some pair of the block may be dropped.
  void prepare(const Call& call, const Sequence& sequence, std::int32_t kv_head, std::int32_t block, bool drops, Worker& worker) const {
    const int keys = s_.block_keys(sequence, block);
    const std::int64_t key = std::int64_t{block} * s_.ops.block_kv;
    const KeyRows k_rows = call.k.block(sequence, key, keys, kv_head, worker.k_block);
    worker.k = s_.ops.prepare(k_rows, keys, s_.dim, {.dot = true}, worker.k_scratch);
    KeyRows v_rows = call.v.block(sequence, key, keys, kv_head, worker.v_block);
    worker.nonfinite_v->clear();
    if (drops) worker.nonfinite_v->take(s_.ops, keys, s_.dim_v, worker.v_copy, v_rows);
    worker.v = s_.ops.prepare(v_rows, keys, s_.dim_v, {.mix = true}, worker.v_scratch);
  }

  /// The step of a tile and the block that prepare() has prepared.
  void visit(const Call& call, const Sequence& sequence, const Tile& state, Worker& worker) const {
    const int keys = s_.block_keys(sequence, state.block);
    for_each_slice(s_, sequence, call.data, state, keys, worker, [&](const Tile& lanes, Worker& tiles) {
      visit_lanes(call, sequence, lanes, {0, keys}, tiles);
    });
  }

  /// Epilogue: writes out and lse of a tile.
  void finish(const Call& call, const Sequence& sequence, const LaneTile& tile, const TileSums<Real>& sums, Worker& worker) const {
    finish_sums(call, sequence, tile, sums.sum, worker.factor, [&](int lane) { return s_.lse(sums.max[lane], sums.sum[lane]); });
    for (int lane = 0; lane < tile.lanes(); ++lane)
      if (sums.sum[lane] == 0)  // not by a factor of 0: unweighted values may be NaN
        for (int d = 0; d < s_.dim_v; ++d) sums.acc[d * s_.ops.tile_lanes + lane] = 0;
    s_.ops.write_lanes(sums.acc, s_.dim_v, worker.factor, LanePointers(call.out, sequence, tile).out(padded_lanes(tile)));
  }

 private:
  void visit_lanes(const Call& call, const Sequence& sequence, const Tile& state, KeyRange all, Worker& worker) const {
    const int ld = s_.ops.tile_lanes, valid = state.lanes.count, lanes = state.lanes.padded();
    const BlockLanes at{state.lanes, state.panel, state.block, !state.cursor.full()};
    const auto [range, ranges, lane_max] = score_block<Real>(
        s_, sequence, call.data, at, all, worker.k, {worker.scores, worker.lane_max, worker.first, worker.last, worker.tape_scratch});
    if (range.begin == range.end) return;
    const bool dropout = s_.has_dropout(), nonfinite = worker.nonfinite_v->any();
    if (nonfinite) worker.kept->record(worker.scores, ld, range, valid, ranges);
    const Weights weights{.mix = s_.ops.weights_in_tile ? nullptr : worker.weights};
    if (s_.ops.softmax(worker.scores, range, std::min(lanes, state.lanes.padded(s_.ops.lane_multiple)), s_.scale, ranges, lane_max,
                       state.max, state.sum, worker.factor, dropout || nonfinite ? Weights{} : weights))
      s_.ops.scale_lanes(state.acc, s_.dim_v, lanes, worker.factor);
    if (dropout) {
      const TileFrame kept = s_.frame(sequence, state.lanes, state.block, range);
      apply_dropout<Real>(s_.target, kept, call.dropout, worker.scores + range.begin * ld, nullptr);
    }
    if ((dropout || nonfinite) && weights.mix) s_.ops.round_weights(worker.scores, range, lanes, weights);
    s_.ops.mix(worker.v, worker.weights, range, state.lanes.padded(s_.ops.lane_multiple), s_.dim_v, state.acc);
    if (nonfinite) worker.nonfinite_v->mix(range, *worker.kept, worker.scores, ld, valid, s_.dim_v, dropout, state.acc);
  }

  const Setup<Real>& s_;
};

}  // namespace foveal::cpu
