#pragma once
// Which tiles a tile row visits, and which sequence it belongs to.
//
// config.cuh: kProblem.
#include "args.cuh"
#include "base.cuh"
#include "problem_traits.cuh"

#include "config.cuh"

namespace foveal::device {

/// Walks the tiles of one row in order.
class TileCursor {
 public:
  /// limit: tiles of this sequence (a packed batch is planned for the longest).
  FOVEAL_DEVICE TileCursor(const TileRuns& runs, int batch, int head, int row, int limit) : runs_(runs.runs), limit_(limit) {
    if (runs_ == nullptr) {
      tile = -1;
      end_ = limit;
      full = runs.all_full != 0;
    } else {
      const i64 at = batch * runs.batch_stride + head * runs.head_stride + row;
      run_ = runs.row_begin[at];
      run_end_ = runs.row_end[at];
    }
  }

  /// Moves to the next tile; false when there is none.
  FOVEAL_DEVICE bool next() {
    ++tile;
    while (tile >= end_) {
      if (run_ >= run_end_) return false;
      const TileRun run = runs_[run_++];
      tile = run.begin;
      end_ = run.end < limit_ ? run.end : limit_;
      full = run.full != 0;
    }
    return true;
  }

  int tile = 0;
  bool full = false;

 private:
  const TileRun* runs_;
  int limit_;
  int end_ = 0;
  int run_ = 0, run_end_ = 0;
};

struct Sequence {
  int batch, len_q, len_kv;
  i64 first_q, first_kv;  ///< rows before it in packed tensors
};

FOVEAL_DEVICE Sequence find_sequence(const AttentionArgs& args, int batch) {
  constexpr KeyRows keys = kProblem.key_rows;
  if constexpr (keys == KeyRows::packed) {
    const SeqlenIndex* q = static_cast<const SeqlenIndex*>(args.cu_seqlens_q);
    const SeqlenKvIndex* kv = static_cast<const SeqlenKvIndex*>(args.kv_lengths);
    return {batch, int(q[batch + 1] - q[batch]), int(kv[batch + 1] - kv[batch]), i64(q[batch]), i64(kv[batch])};
  }
  Sequence sequence{batch, args.seqlen_q, args.seqlen_kv, 0, 0};
  if constexpr (kProblem.varlen) {
    const SeqlenIndex* q = static_cast<const SeqlenIndex*>(args.cu_seqlens_q);
    sequence.len_q = int(q[batch + 1] - q[batch]);
    sequence.first_q = i64(q[batch]);
  }
  if constexpr (keys != KeyRows::batched &&
                keys != KeyRows::spread) {  // lengths are not validated on the host: clamped, so that no row out of bounds is read
    const SeqlenKvIndex length = static_cast<const SeqlenKvIndex*>(args.kv_lengths)[batch];
    sequence.len_kv = int(length < 0 ? SeqlenKvIndex(0) : length < args.seqlen_kv ? length : SeqlenKvIndex(args.seqlen_kv));
    if constexpr (keys == KeyRows::gathered) sequence.first_kv = i64(batch) * args.seqlen_kv;
  }
  return sequence;
}

}  // namespace foveal::device
