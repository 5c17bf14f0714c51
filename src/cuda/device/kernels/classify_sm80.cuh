// Classifies the tiles of a mask that reads data: one block for each tile evaluates every pair once.
//
// config.cuh: kProblem, kConfig (a PortableConfig, for the sizes of tiles), kMask (a ClassifiedMask).
#include "layout/agreed.cuh"
#include "tile_classes.cuh"
#include "tile/problem.cuh"

extern "C" __global__ void __launch_bounds__(foveal::device::kClassifyThreads)
    classify_sm80(const __grid_constant__ foveal::device::ClassifyArgs args) {
  using namespace foveal::device;
  const AttentionArgs& attention = args.attention;
  const int rows = kMask.transposed ? attention.tiles_kv : attention.tiles_q;  // of one head
  const int tile = int(blockIdx.x) % args.tiles, row = int(blockIdx.x) / args.tiles % rows;
  const int mask_head = int(blockIdx.x) / args.tiles / rows, head = mask_head % kMask.heads;
  const Sequence seq = find_sequence(attention, mask_head / kMask.heads);
  const int q_begin = (kMask.transposed ? tile : row) * kBlockQ, kv_begin = (kMask.transposed ? row : tile) * kBlockKv;
  if (args.known != nullptr && args.known[blockIdx.x] != kPartial) {
    if (threadIdx.x == 0) args.classes[blockIdx.x] = args.known[blockIdx.x];
    return;
  }
  // A thread evaluates one key and every kStep-th query.
  constexpr int kStep = kClassifyThreads / kBlockKv, kLookers = kStep * kBlockKv;
  __shared__ unsigned char kept[kBlockKv];
  for (int i = threadIdx.x; i < kBlockKv; i += kClassifyThreads) kept[i] = 0;
  __syncthreads();
  bool any = false, all = true;
  if (q_begin < seq.len_q && kv_begin < seq.len_kv && threadIdx.x < kLookers) {
    const int column = threadIdx.x % kBlockKv;
    const int kv = int(attention.kv_offset) +
                   min(kv_begin + column, seq.len_kv - 1);  // positions are clamped: repeating the last pair changes nothing
#pragma unroll 16
    for (int row = threadIdx.x / kBlockKv; row < kBlockQ; row += kStep) {
      const int q = int(attention.q_offset) + min(q_begin + row, seq.len_q - 1);
      const bool keep = mask_keep({seq.batch, head, q, kv, seq.len_q, seq.len_kv}, attention.score);
      any |= keep;
      all &= keep;
    }
    if (any) kept[column] = 1;
  }
  const bool some = __syncthreads_or(any), every = __syncthreads_and(all);
  const bool covered = __syncthreads_and(threadIdx.x >= kBlockKv || kept[threadIdx.x]);
  if (threadIdx.x == 0) args.classes[blockIdx.x] = !some ? kEmpty : every ? kFull : covered ? kCovered : kPartial;
}
