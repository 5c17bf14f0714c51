#pragma once
// Which tiles a CTA visits. Producer and consumers walk the same sequence from the same inputs, so neither has to tell the other.
#include "abi/sm90.h"
#include "ptx/basic.cuh"

/// Where the tiles of one row come from. all: every tile. causal: kv - q at most band_high. band: at least band_low as well. list: runs made by
/// mask/, with the mask program for the pairs of partial tiles.
enum class TileSource { all, causal, band, list };

/// One task: a row of tiles of one query head (or kv head) of one sequence.
struct Task {
  int row, head, batch;
};

/// Task number `round` of this CTA: those of a section row by row (the longest first), dealt to the CTAs to and fro so
/// that long and short ones even out.
FOVEAL_DEVICE bool task_at(int round, const TileSpace& space, int heads, Task& task) {
  const int grid = gridDim.x;
  const int index = round * grid + ((round & 1) ? grid - 1 - static_cast<int>(blockIdx.x) : static_cast<int>(blockIdx.x));
  if (index >= space.tiles) return false;
  const int section_tasks = space.section_heads * space.tiles_per_head;
  const int section = index / section_tasks;
  const int inside = index - section * section_tasks;
  const int first_head = section * space.section_heads;
  const int section_heads = min(space.section_heads, heads * space.batch - first_head);
  const int step = inside / section_heads;
  const int flat_head = first_head + inside - step * section_heads;
  task.row = space.first_row_first ? step : space.tiles_per_head - 1 - step;
  task.batch = flat_head / heads;
  task.head = flat_head - task.batch * heads;
  return true;
}

/// Lengths and first tokens of one sequence.
struct Sequence {
  int length_q, length_kv, first_q, first_kv;
};

template <bool varlen>
FOVEAL_DEVICE Sequence sequence_of(const TileSpace& space, int batch) {
  if constexpr (varlen) {
    const int q = space.cu_seqlens_q[batch], kv = space.cu_seqlens_kv[batch];
    return {space.cu_seqlens_q[batch + 1] - q, space.cu_seqlens_kv[batch + 1] - kv, q, kv};
  }
  return {space.seqlen_q, space.seqlen_kv, 0, 0};
}

/// First row of the statistics of one sequence and query head; see BackwardArgs.
template <bool varlen>
FOVEAL_DEVICE i64 stat_offset(const BackwardArgs& args, const Sequence& sequence, int batch, int head) {
  if constexpr (varlen) return static_cast<i64>(head) * args.stat_rows + (sequence.first_q + 128 * batch) / 128 * 128;
  return static_cast<i64>(batch * args.space.heads_q + head) * args.stat_rows;
}

/// Tiles along one axis for a row of tiles on the other, last to first: borders (the diagonal, the tail) come while the pipeline fills.
/// transposed: rows are kv tiles and the walk goes along q. `partial`: some pair of the tile is not kept, or lies beyond the end.
template <TileSource source, bool transposed>
struct TileWalk {
  static constexpr bool kLimitLow = source == TileSource::band || (source == TileSource::causal && transposed);
  static constexpr bool kLimitHigh = source == TileSource::band || (source == TileSource::causal && !transposed);

  int tile, begin;           // current tile, first tile of the current run
  bool run_full;             // list
  const TileRun* run;        // list: next run to take, descending
  const TileRun* run_first;
  int full_begin, full_end;  // tiles in this range need no test for limits and end

  /// `length`: positions along the walk; [row_begin, row_end): positions of the row.
  FOVEAL_DEVICE void start(const TileSpace& space, int row, int list_head, int row_begin, int row_end, int length, int block) {
    if constexpr (source == TileSource::list) {
      const long long* offset = space.run_begin + (space.run_rows > 0 ? static_cast<i64>(list_head) * space.run_rows : 0) + row;
      run_first = space.runs + offset[0];
      run = space.runs + offset[1];
      tile = begin = 0;
      full_begin = 0;
      full_end = length / block;
    } else {
      const int low = transposed ? -space.band_high : space.band_low;
      const int high = transposed ? -space.band_low : space.band_high;
      int first = 0, last = length;              // positions that some row may keep
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
      tile = last > first ? (last + block - 1) / block : begin;
      full_begin = (every_first + block - 1) / block;
      full_end = max(every_last, 0) / block;
    }
  }

  /// No tiles until the next start().
  FOVEAL_DEVICE void stop() {
    tile = begin = 0;
    run = run_first = nullptr;
  }

  FOVEAL_DEVICE bool next(bool& partial) {
    if constexpr (source == TileSource::list) {
      if (tile == begin) {
        if (run == run_first) return false;
        --run;
        tile = run->end;
        begin = run->begin;
        run_full = run->full;
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
