#pragma once
// What the kernels that move rows between buffers of ranks are called with, and compiled for (kConfig). Shared with the host: plain types
// only.
#include "args.cuh"

namespace foveal::device {

/// [batch, tokens, heads, dim]; strides in elements. Statistics have dim 1.
struct RowsView {
  void* data;
  long long batch, token, head, dim;
};

constexpr int kRowThreads = 256;    ///< of a CTA of move_rows and finish_rows
constexpr int kSinkThreads = 1024;  ///< of sink_gradient
constexpr int kMaxMoreRows = 7;

/// to = from, or from + more[0] + more[1] ..., or to += from.
struct MoveRowsArgs {
  RowsView from, to;
  RowsView more[kMaxMoreRows];  ///< of from's type
  int batch, tokens, heads, dim;
  int adds, more_count;
};

/// kConfig of kernels/move_rows.cuh.
struct MoveRowsConfig {
  int vector;        ///< elements that a thread moves at once, as addresses and strides allow
  bool tokens_last;  ///< tokens are contiguous in memory

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("vector", self.vector), fn("tokens_last", self.tokens_last);
  }
};

/// Final output from wide accumulated parts: the sink is applied, rows without keys become zero.
struct FinishRowsArgs {
  RowsView out, wide;  ///< to, from
  RowsView lse, sums;  ///< to (null data: not wanted), from: f64
  const void* sink;    ///< of the first head; may be null
  long long sink_stride;
  int batch, tokens, heads, dim;
};

/// kConfig of kernels/finish_rows.cuh.
struct FinishRowsConfig {
  bool has_sink;
  int vector;  ///< elements that a lane moves at once

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("has_sink", self.has_sink), fn("vector", self.vector);
  }
};

/// d sink[head] = - sum over rows of p(sink) (dout . out - dlse).
struct SinkGradientArgs {
  RowsView out, dout, lse, dlse;
  const void* sink;
  long long sink_stride;
  double* gradient;  ///< one for each head
  int batch, tokens, heads, dim;
};

}  // namespace foveal::device
