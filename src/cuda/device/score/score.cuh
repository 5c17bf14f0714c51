#pragma once
// The score and mask of this problem, written by score_emit:
//   constexpr bool kHasScore, kHasMask, kHasSink;
//   real score_forward(score, at, args)        the modified score
//   real score_backward(score, at, args)       d modified / d score
//   bool mask_keep(at, args)
//   real sink_logit(head, args)
// and for each trainable read r < kReads (kReadKind[r]: how it is reduced; kReadParam[r], kReadRank[r]: its parameter; kReadStores[r]: each
// element is written once, as a ReadGradient<r>):
//   real read_factor<r>(score, at, args)       d modified / d read
//   void read_index<r>(score, at, args, index) the indices, clamped into the parameter
// kSinkParam: the sink's position when its gradient is wanted, else -1.
// `score` is the scaled raw score q . k * scale; real is float, or double for f64 inputs.
#include "score/functions.cuh"

namespace foveal::device {

/// Where a pair is: global positions, and the lengths of its sequence.
struct Position {
  int batch, head, q, kv, seqlen_q, seqlen_kv;
};

/// How the gradient of a read is reduced (scoring::Reduction).
enum ReadKind { kUniform, kRow, kColumn, kDiagonal, kElement, kScatter };

#include "score.cuh"

}  // namespace foveal::device
