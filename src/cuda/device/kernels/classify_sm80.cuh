// Which tiles a mask that reads data keeps: one block per tile evaluates every pair once.
//
// config.cuh: kBlockQ, kBlockKv, kTransposed, kMaskHeads, kVarlen, SeqlenIndex.
#include "tile_classes.cuh"
#include "tile/problem.cuh"

extern "C" __global__ void __launch_bounds__(256) classify_sm80(const __grid_constant__ foveal::device::ClassifyArgs args) {
  using namespace foveal::device;
  const AttentionArgs& attention = args.attention;
  const int rows = kTransposed ? attention.tiles_kv : attention.tiles_q;  // of one head
  const int tile = int(blockIdx.x) % args.tiles, row = int(blockIdx.x) / args.tiles % rows;
  const int mask_head = int(blockIdx.x) / args.tiles / rows, head = mask_head % kMaskHeads;
  const Sequence seq = find_sequence(attention, mask_head / kMaskHeads);
  const int q_begin = (kTransposed ? tile : row) * kBlockQ, kv_begin = (kTransposed ? row : tile) * kBlockKv;
  bool any = false, all = true;
  if (q_begin < seq.len_q && kv_begin < seq.len_kv) {
#pragma unroll 16
    for (int i = threadIdx.x; i < kBlockQ * kBlockKv; i += 256) {
      // A pair beyond the end says what the last one says.
      const int q = min(q_begin + i / kBlockKv, seq.len_q - 1), kv = min(kv_begin + i % kBlockKv, seq.len_kv - 1);
      const bool keep =
          mask_keep({seq.batch, head, int(attention.q_offset) + q, int(attention.kv_offset) + kv, seq.len_q, seq.len_kv}, attention.score);
      any |= keep;
      all &= keep;
    }
  }
  any = __syncthreads_or(any);
  all = __syncthreads_and(all);
  if (threadIdx.x == 0) args.classes[blockIdx.x] = any ? (all ? kFull : kPartial) : kEmpty;
}
