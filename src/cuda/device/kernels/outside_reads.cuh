// Debugging aid: finds pairs kept by the mask that read a parameter out of bounds (Attention::checked). A block tests the pairs of one
// query and head after the other; no tile is skipped, and indices that depend on the score compute it here.
//
// config.cuh: kProblem. emit.cuh, besides: kIndexReadsScore; mask_reads_outside, score_reads_outside.
#include "outside_args.cuh"
#include "schedule/tile_runs.cuh"
#include "score/score.cuh"

namespace foveal::device {

FOVEAL_DEVICE real product(const AttentionArgs& args, const Sequence& seq, int head, int q, int kv) {
  const Tensor &a = args.q, &b = args.k;
  const Element* query = static_cast<const Element*>(a.data) + seq.batch * a.batch + (seq.first_q + q) * a.seq + head * a.head;
  const Element* key =
      static_cast<const Element*>(b.data) + seq.batch * b.batch + (seq.first_kv + kv) * b.seq + head / args.group_size * b.head;
  real sum = 0;
  for (int d = 0; d < kProblem.head_dim; ++d) sum = fma_real(to_real(query[d * a.dim]), to_real(key[d * b.dim]), sum);
  return sum;
}

/// The pairs of one query and head; row: of all queries of all heads.
FOVEAL_DEVICE void look_at_row(const OutsideArgs& args, i64 row) {
  const AttentionArgs& attention = args.attention;
  const int q = int(row % attention.seqlen_q), head = int(row / attention.seqlen_q % attention.heads_q);
  const Sequence seq = find_sequence(attention, int(row / attention.seqlen_q / attention.heads_q));
  if (q >= seq.len_q) return;
  for (int kv = threadIdx.x; kv < seq.len_kv; kv += kOutsideThreads) {
    const i64 pair = row * attention.seqlen_kv + kv;
    if (args.wanted >= 0 && pair != args.wanted) continue;
    const Position at{seq.batch, head, int(attention.q_offset) + q, int(attention.kv_offset) + kv, seq.len_q, seq.len_kv};
    if (kHasMask && !mask_keep(at, attention.score)) continue;
    OutsideRead read;
    const real raw = kIndexReadsScore ? product(attention, seq, head, q, kv) : real(0);
    if (!mask_reads_outside(at, attention.score, read) &&
        !score_reads_outside(Score{raw, real(attention.scale)}, at, attention.score, read))
      continue;
    if (args.wanted < 0) {
      atomicMin(args.first, u64(pair));
    } else {
      *args.read = read;
    }
  }
}

}  // namespace foveal::device

extern "C" __global__ void __launch_bounds__(foveal::device::kOutsideThreads)
    outside_reads(const __grid_constant__ foveal::device::OutsideArgs args) {
  using namespace foveal::device;
  const i64 rows = i64(args.attention.batch) * args.attention.heads_q * args.attention.seqlen_q;
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) look_at_row(args, row);
}
