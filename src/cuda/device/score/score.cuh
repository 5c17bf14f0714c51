#pragma once
// The score and mask of this problem, written by score_emit:
//   constexpr bool kHasScore, kHasMask, kHasSink;
//   real score_forward(score, at, args)        the modified score
//   real score_backward(score, at, args)       d modified / d score; kSlopeOfScore: it depends on the score
//   bool mask_keep(at, args)
//   real sink_logit(head, args)
// and for each trainable read r < kReads (kReadKind[r]: how it is reduced; kReadParam[r], kReadRank[r]: its parameter; kReadStores[r]: each
// element is written once, as a ReadGradient<r>):
//   real read_factor<r>(score, at, args)       d modified / d read; kFactorOfScore[r]: it depends on the score; kFactorIsOne[r]
//   void read_index<r>(score, at, args, index) the indices, clamped into the parameter
// kSinkParam: the sink's position when its gradient is wanted, else -1.
// `score` is the scaled raw score q . k * scale; real is float, or double for f64 inputs.
//
// Kernels that evaluate what is the same along a line of a tile apart from its pairs (tile/line_values.cuh) find the functions for that,
//   real walk_value<v>(at, args), v < kWalkValues           the same for all pairs of one position along the walk of a task
//   real diagonal_value<v>(at, args), v < kDiagonalValues   the same for all pairs of one diagonal
// and hand the values in as at.walk[v], at.diagonal[v]. For other kernels there are none.
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
