#pragma once
// The score and mask of this problem, written by score_emit:
//   constexpr bool kHasScore, kHasMask, kHasSink;
//   Real score_forward(score, at, args)        the modified score
//   Real score_backward(score, at, args)       d modified / d score
//   bool mask_keep(at, args)
//   Real sink_logit(head, args)
// and for each trainable read r < kReads (its Reduction kind in kReadKind[r], its parameter in kReadParam[r]):
//   Real read_factor<r>(score, at, args)       d modified / d read
//   void read_index<r>(score, at, args, index) the indices, clamped into the parameter
// `score` is the scaled raw score q . k * scale; Real is float, or double for f64.
#include "args.cuh"
#include "element.cuh"

#include "config.cuh"

namespace foveal::device {

/// Where a pair is: global positions, and the lengths of its sequence.
struct Position {
  int batch, head, q, kv, seqlen_q, seqlen_kv;
};

/// How the gradient of a read is reduced (scoring::Reduction).
enum ReadKind { kUniform, kRow, kColumn, kDiagonal, kElement, kScatter };

#include "score.cuh"

}  // namespace foveal::device
