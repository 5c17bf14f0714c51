#pragma once
// Scores of some lanes and a block of keys, ready for softmax(): dot products, score_mod, and masks other than ranges of keys.
#include "cpu/lane_ranges.h"
#include "cpu/lanes.h"
#include "cpu/setup.h"

namespace foveal::cpu {

/// Lanes of a tile, and a block of keys.
struct BlockLanes {
  LaneView lanes;
  const void* panel;
  std::int32_t block;
  bool partial;
};

/// Buffers for scores. first, last: input, the ranges of a partial block whose mask is ranges.
template <class Real>
struct ScoreBuffers {
  Real *tile, *lane_max;
  std::int32_t *first, *last;
  void* tape_scratch;
};

/// The keys that any lane attends to (possibly none), ranges where the mask is still to be applied, and maxima where they are known.
template <class Real>
struct BlockScores {
  KeyRange range;
  LaneRanges ranges;
  const Real* lane_max = nullptr;
};

template <class Real>
BlockScores<Real> score_block(const Setup<Real>& s, const Sequence& sequence, const TapeData& data, const BlockLanes& at, KeyRange range,
                              const Operand& k, const ScoreBuffers<Real>& to) {
  const int ld = s.ops.tile_lanes, valid = at.lanes.count, lanes = at.lanes.padded();
  BlockScores<Real> found{range, {}};
  if (at.partial && s.tape.mask_is_ranges()) {
    found.range = trim({to.first, to.last}, valid, s.ops.key_multiple, range);
    if (found.range.begin == found.range.end) return found;
    if (!s.tape.has_score()) found.ranges = {to.first, to.last};
  }
  const TileFrame frame = s.frame(sequence, at.lanes, at.block, found.range);
  Real* scores = to.tile + found.range.begin * ld;
  s.ops.dot(k, at.panel, found.range, at.lanes.padded(s.ops.lane_multiple), s.dim, to.tile);
  if (s.problem.attention.checked) s.refuse_fault(frame, data, scores);
  if (!s.tape.has_score() && (!at.partial || found.ranges.first)) return found;
  std::fill_n(to.lane_max, lanes, -std::numeric_limits<Real>::infinity());
  s.tape.apply(frame, data, scores, scores, at.partial, s.tape.has_score() ? to.lane_max : nullptr, to.tape_scratch);
  if (s.tape.has_score()) found.lane_max = to.lane_max;
  if (at.partial) found.range = trim(to.tile, ld, valid, s.ops.key_multiple, found.range);
  return found;
}

/// Calls fn(tile, worker) for a tile and a block: once, or for each half of the lanes where the halves together need fewer keys. Computes
/// the ranges of keys where they are the mask.
template <class Real, class Tile, class Worker, class Fn>
void for_each_slice(const Setup<Real>& s, const Sequence& sequence, const TapeData& data, const Tile& tile, int keys, Worker& worker,
                    Fn&& fn) {
  const int count = tile.lanes.count;
  int lower = count;
  if (!tile.cursor.full() && s.tape.mask_is_ranges()) {
    const KeyRange all{0, keys};
    s.tape.lane_ranges(s.frame(sequence, tile.lanes, tile.block, all), data, worker.first, worker.last, worker.tape_scratch);
    if (s.ops.weights_in_tile) lower = first_slice({worker.first, worker.last}, count, s.ops.tile_lanes / 2, all);
  }
  if (lower == count) return fn(tile, worker);
  fn(tile.slice(s, 0, lower), worker);
  Worker rest = worker.slice(lower);
  fn(tile.slice(s, lower, count), rest);
}

/// The softmax state before the first key. `sink` may be null.
template <class Real>
void start_sums(const Setup<Real>& s, const LaneTile& tile, const TensorView* sink, Real* max, Real* sum) {
  std::fill_n(max, s.ops.tile_lanes, std::numeric_limits<Real>::lowest());
  std::fill_n(sum, s.ops.tile_lanes, Real(0));
  if (sink)
    for_each_sink(*sink, tile, [&](int lane, double logit) {
      max[lane] = s.in_units(logit);
      sum[lane] = 1;
    });
}

}  // namespace foveal::cpu
