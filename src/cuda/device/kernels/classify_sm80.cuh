// Which tiles a mask that reads data keeps: one block per row of tiles evaluates every pair once and writes the row's runs.
#include "tile/problem.cuh"

extern "C" __global__ void __launch_bounds__(256) classify_sm80(const __grid_constant__ foveal::device::AttentionArgs args) {
  using namespace foveal::device;
  const TileRuns& table = kTransposed ? args.runs_transposed : args.runs;
  const int rows = kTransposed ? args.tiles_kv : args.tiles_q;
  const int row = int(blockIdx.x) % rows;
  const int head = int(blockIdx.x) / rows % kMaskHeads;
  const Sequence seq = find_sequence(args, int(blockIdx.x) / rows / kMaskHeads);
  const i64 at_row = seq.batch * table.batch_stride + head * table.head_stride + row;
  const int tiles = kTransposed ? divide_up(seq.len_q, kBlockQ) : divide_up(seq.len_kv, kBlockKv);
  const int capacity = kTransposed ? args.tiles_q : args.tiles_kv;

  TileRun* runs = const_cast<TileRun*>(table.runs) + at_row * capacity;
  int count = 0;
  TileRun run{0, 0, -1};
  for (int tile = 0; tile < tiles; ++tile) {
    const int q_begin = (kTransposed ? tile : row) * kBlockQ, kv_begin = (kTransposed ? row : tile) * kBlockKv;
    bool any = false, all = true;
    for (int i = threadIdx.x; i < kBlockQ * kBlockKv; i += 256) {
      const int q = q_begin + i / kBlockKv, kv = kv_begin + i % kBlockKv;
      if (q >= seq.len_q || kv >= seq.len_kv) continue;
      const bool keep = mask_keep({seq.batch, head, int(args.q_offset) + q, int(args.kv_offset) + kv, seq.len_q, seq.len_kv}, args.score);
      any = any || keep;
      all = all && keep;
    }
    any = __syncthreads_or(any);
    all = __syncthreads_and(all);
    if (any && run.end == tile && run.full == int(all)) {
      run.end = tile + 1;
    } else {
      if (run.full >= 0) {
        if (threadIdx.x == 0) runs[count] = run;
        ++count;
      }
      run = any ? TileRun{tile, tile + 1, int(all)} : TileRun{0, 0, -1};
    }
  }
  if (threadIdx.x == 0) {
    if (run.full >= 0) runs[count++] = run;
    const_cast<int*>(table.row_begin)[at_row] = int(at_row * capacity);
    const_cast<int*>(table.row_end)[at_row] = int(at_row * capacity) + count;
  }
}
