#pragma once
// Rows on their way between the buffers of ranks. Shared with the host: plain types only.
#include "args.cuh"

namespace foveal::device {

/// [batch, tokens, heads, dim]; strides in elements. Statistics have a dim of 1.
struct RowsView {
  void* data;
  long long batch, token, head, dim;
};

/// `to` = from, or from + more, or += from.
struct MoveRowsArgs {
  RowsView from, more, to;  ///< more: of from's type; no data: none
  int batch, tokens, heads, dim;
  int adds, unused;
};

/// Wide results of parts to results: a sink joins, rows without keys become zeros.
struct FinishRowsArgs {
  RowsView out, wide;  ///< to, from
  RowsView lse, sums;  ///< to (no data: unwanted), from: f64
  const void* sink;    ///< of the first head; null: none
  long long sink_stride;
  int batch, tokens, heads, dim;
};

/// d sink[head] = - sum over rows of p(sink) (dout . out - dlse).
struct SinkGradientArgs {
  RowsView out, dout, lse, dlse;
  const void* sink;
  long long sink_stride;
  double* gradient;  ///< of each head
  int batch, tokens, heads, dim;
};

}  // namespace foveal::device
