// From tile classes to runs: one warp for each row of tiles, one lane for each tile.
#include "base.cuh"
#include "layout/agreed.cuh"
#include "tile_classes.cuh"

#include "config.cuh"

extern "C" __global__ void __launch_bounds__(32 * foveal::device::kListRunsWarps)
    list_runs_sm80(const __grid_constant__ foveal::device::ClassifyArgs args) {
  using namespace foveal::device;
  const int row = int(blockIdx.x) * kListRunsWarps + warp_id();
  if (row >= args.rows) return;
  const i64 first = i64(row) * args.tiles;
  const unsigned char* classes = args.classes + first;
  TileRun* runs = const_cast<TileRun*>(args.table.runs) + first;
  const auto class_of = [&](int tile) { return tile >= 0 && tile < args.tiles ? classes[tile] : (unsigned char)kEmpty; };
  int count = 0;
  for (int begin = 0; begin < args.tiles; begin += kWarp) {
    const int tile = begin + lane_id(), kind = class_of(tile);
    const bool starts = kind != kEmpty && kind != class_of(tile - 1), ends = kind != kEmpty && kind != class_of(tile + 1);
    const u32 starting = __ballot_sync(~0u, starts);
    TileRun* run = runs + count + __popc(starting & (~0u >> (kWarp - 1 - lane_id()))) - 1;
    if (starts) run->begin = tile, run->full = kind == kFull, run->covered = kind != kPartial;
    if (ends) run->end = tile + 1;
    count += __popc(starting);
  }
  if (lane_id() == 0) {
    const_cast<int*>(args.table.row_begin)[row] = int(first);
    const_cast<int*>(args.table.row_end)[row] = int(first) + count;
  }
}
