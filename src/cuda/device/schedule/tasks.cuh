#pragma once
// Persistent tile scheduler: which tasks a CTA runs and which tiles a task visits. Producer and consumers compute the same sequence from
// the same arguments and need not communicate.
#include "base.cuh"
#include "layout/agreed.cuh"
#include "sm90_config.cuh"
#include "ptx/warp.cuh"
#include "schedule/tile_runs.cuh"
#include "sm90_args.cuh"

namespace foveal::device {

/// One task: a row of tiles of one query head (or kv head) of one sequence.
struct Task {
  int row, head, batch;
};

FOVEAL_DEVICE int divide(int n, const Divisor& d) {
  return static_cast<int>((__umulhi(static_cast<u32>(n), d.multiplier) + static_cast<u32>(n)) >> d.shift);
}

/// Task number `round` of this CTA. Within a section tasks are dealt row by row, longest first (LPT), either serpentine (alternating
/// direction, so that long and short ones balance) or always in the same direction (so that a row runs after the row before it). The CTAs
/// of a cluster share a task. With one CTA for each task there is one round.
template <int cluster_size = 1>
FOVEAL_DEVICE bool task_at(int round, const TaskOrder& order, Task& task) {
  const int grid = gridDim.x / cluster_size, place = blockIdx.x / cluster_size;
  const int index = round * grid + ((round & order.serpentine) ? grid - 1 - place : place);
  if (index >= order.tasks) return false;
  const int section = min(divide(index, order.section_tasks), order.last_section);
  const int inside = index - section * order.section_tasks.value;
  const bool last = section == order.last_section;
  const int step = last ? divide(inside, order.last_heads) : divide(inside, order.section_heads);
  const int flat_head = section * order.section_heads.value + inside - step * (last ? order.last_heads.value : order.section_heads.value);
  task.row = order.first_row_first ? step : order.rows - 1 - step;
  const int outside = divide(flat_head, order.inside), inside_it = flat_head - outside * order.inside.value;
  task.batch = order.sequences_inside ? inside_it : outside;
  task.head = order.sequences_inside ? outside : inside_it;
  return true;
}

/// The run that lane 0 has; of whole warps.
FOVEAL_DEVICE TileRun uniform(const TileRun& run) {
  return {static_cast<int>(uniform(static_cast<u32>(run.begin))), static_cast<int>(uniform(static_cast<u32>(run.end))),
          __any_sync(~0u, run.full), __any_sync(~0u, run.covered)};
}

/// The tiles that one task visits, last to first: boundary tiles (diagonal, tail) come while the pipeline fills. transposed: rows are kv
/// tiles and the walk is over q. splits: a task may visit one split of them. `partial`: the mask drops some pair of the tile, or the tile
/// exceeds the sequence.
template <TileSource source, bool transposed, bool splits = false>
struct TileWalk {
  static constexpr bool kLimitLow = source == TileSource::band || (source == TileSource::causal && transposed);
  static constexpr bool kLimitHigh = source == TileSource::band || (source == TileSource::causal && !transposed);

  int tile, begin;             // current tile, first tile of the current run
  int full_begin, full_end;    // tiles in this range need neither mask nor bounds checks
  bool run_full, covered;      // list: of the current run
  int run, run_first;          // list: runs [run_first, run) are still to come
  TileRun upcoming;            // list: the last of them, prefetched
  int split_begin, split_end;  // list: tiles of the split

  /// [row_begin, row_end): positions of the row; `length`: positions along the walk.
  FOVEAL_DEVICE void start(const Sm90Args& args, const TileRuns& runs, int batch, int head, int row, int row_begin, int row_end, int length,
                           int block) {
    const int tiles = divide_up(length, block);
    if constexpr (source == TileSource::list) {
      full_begin = 0;
      full_end = length / block;
      begin = 0;
      split_begin = 0;
      split_end = tiles;
      if (runs.runs == nullptr) {
        tile = tiles;
        run = run_first = 0;
        run_full = covered = runs.all_full != 0;
      } else {
        const i64 at = batch * runs.batch_stride + head * runs.head_stride + row;
        tile = 0;
        run_first = runs.row_begin[at];
        run = runs.row_end[at];
        look_ahead(runs);
      }
    } else {
      const int low = transposed ? -args.band_high : args.band_low;
      const int high = transposed ? -args.band_low : args.band_high;
      int first = 0, last = length;              // positions that some row keeps
      int every_first = 0, every_last = length;  // positions that every row keeps
      if constexpr (kLimitLow) {
        first = max(first, row_begin + low);
        every_first = max(every_first, row_end - 1 + low);
      }
      if constexpr (kLimitHigh) {
        last = min(last, row_end + high);
        every_last = min(every_last, row_begin + high + 1);
      }
      begin = first / block;
      tile = last > first ? divide_up(last, block) : begin;
      full_begin = divide_up(every_first, block);
      full_end = max(every_last, 0) / block;
    }
  }

  FOVEAL_DEVICE void look_ahead(const TileRuns& runs) {
    if (run > run_first) upcoming = runs.runs[run - 1];
  }

  /// After start(): all tiles count as partial.
  FOVEAL_DEVICE void treat_all_as_partial() { full_end = 0; }

  /// No tiles until the next start().
  FOVEAL_DEVICE void stop() { tile = begin = run = run_first = 0; }

  /// After start(): restricts the walk to split number `split` of `count`. Splits of a list are ranges of tiles, whether visited or not.
  FOVEAL_DEVICE void take_split(const TileRuns& runs, int split, int count) {
    if constexpr (source == TileSource::list) {
      const int each = divide_up(split_end, count);
      split_begin = split * each;
      split_end = min(split_end, split_begin + each);
      if (runs.runs == nullptr) {
        begin = split_begin;
        tile = split_end;
        return;
      }
      int last = run;  // of the runs that begin before the split's end
      for (int first = run_first; first < last;) {
        const int middle = (first + last) / 2;
        if (runs.runs[middle].begin < split_end) {
          first = middle + 1;
        } else {
          last = middle;
        }
      }
      run = last;
      look_ahead(runs);
    } else {
      const int each = divide_up(max(tile - begin, 0), count);
      begin += split * each;
      tile = min(tile, begin + each);
    }
  }

  /// Is the current tile the last one? Not for lists.
  FOVEAL_DEVICE bool is_last() const { return tile <= begin; }

  /// Like next(), but only if the next tile is full; otherwise returns false and stays. Not for lists.
  FOVEAL_DEVICE bool next_full() {
    const bool full = tile > max(begin, full_begin) && tile <= full_end;
    tile -= full;
    return full;
  }

  /// by_warp: whole warps call it and take the runs of a list from lane 0. Otherwise the compiler may forget that lanes agree about the
  /// walk, which costs spills.
  template <bool by_warp = false>
  FOVEAL_DEVICE bool next(const TileRuns& runs, int length, int block, bool& partial) {
    if constexpr (source == TileSource::list) {
      while (tile <= begin) {
        if (run <= run_first || (splits && upcoming.end <= split_begin)) return false;
        const TileRun taken = by_warp ? uniform(upcoming) : upcoming;
        --run;
        look_ahead(runs);
        tile = min(taken.end, divide_up(length, block));
        begin = taken.begin;
        if constexpr (splits) {
          tile = min(tile, split_end);
          begin = max(begin, split_begin);
        }
        run_full = taken.full;
        covered = taken.covered;
      }
      --tile;
      partial = !run_full || tile >= full_end;
    } else {
      if (tile <= begin) return false;
      --tile;
      partial = tile < full_begin || tile >= full_end;
    }
    return true;
  }
};

/// First row of the statistics of a sequence and query head; see Sm90Args::stat_rows.
template <bool varlen>
FOVEAL_DEVICE i64 stat_row(const Sm90Args& args, const Sequence& sequence, int head) {
  if constexpr (varlen) return static_cast<i64>(head) * args.stat_rows + padded_first_row(sequence.first_q, sequence.batch);
  return static_cast<i64>(sequence.batch * args.attention.heads_q + head) * args.stat_rows;
}

}  // namespace foveal::device
