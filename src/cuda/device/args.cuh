#pragma once
// Kernel arguments, shared with the host: plain types only.
// Structs have no padding bytes (tests/cuda/args_test.cpp): recording compares launches byte by byte.

namespace foveal::device {

/// q, k, v, out and their gradients: strides in elements for [batch, seqlen, heads, dim]. Packed tensors have batch stride 0.
struct Tensor {
  void* data;
  long long batch, seq, head, dim;
  int copy_bytes;  ///< widest vector copy of a row in bytes, 16 or 4; 0: element by element
  int unused;
};

/// lse, dlse, delta: strides for [batch, heads, seqlen].
struct Rows {
  void* data;
  long long batch, head, seq;
};

/// Page i of sequence b is data[b * batch + i * page].
struct BlockTable {
  const int* data;
  long long batch, page;
};

constexpr int kMaxParams = 12;
constexpr int kMaxParamRank = 6;

/// A parameter of the score or mask.
struct ParamView {
  const void* data;
  long long stride[kMaxParamRank];
  int size[kMaxParamRank];
};

/// Where the gradient of a parameter is accumulated: `bins` for exact sums (score/exact_sum.cuh), `values` for plain stores.
struct ParamGradient {
  unsigned long long* bins;
  long long elements;
  void* values;
  long long stride[kMaxParamRank];  ///< strides of values, in elements
};

constexpr int kMaxNumbers = 16;

struct ScoreArgs {
  ParamView param[kMaxParams];
  float number[kMaxNumbers];  ///< constants of the score, which its text refers to by index
};

/// Consecutive tiles [begin, end) that a tile row visits. full: no mask evaluation. covered: every key of these tiles is kept by some query
/// of the row.
struct alignas(16) TileRun {
  int begin, end, full, covered;
};

/// The runs of one tile row are runs[row_begin[row] .. row_end[row]), row = batch * batch_stride + head * head_stride + tile.
struct TileRuns {
  const TileRun* runs;  ///< null: every tile is visited
  const int* row_begin;
  const int* row_end;
  long long batch_stride, head_stride;
  int all_full;  ///< without runs: no tile needs its mask evaluated
  int unused;
};

struct DropoutArgs {
  unsigned long long seed, offset;
  const unsigned long long* state;  ///< {seed, offset} in device memory, in place of the two above; may be null
  unsigned threshold;               ///< a pair is kept if its random bits are >= this
  float keep_scale;                 ///< 1 / (1 - p)
  double keep_scale_f64;
};

/// One part of an attention computed in several launches (ProblemTraits::part); its results are accumulated.
struct PartArgs {
  int adds_to_q, adds_to_kv;             ///< 0: this part is the first
  int batch_offset, head_offset, heads;  ///< position within the whole attention, for dropout
  unsigned number;                       ///< kept in the low bits of lse, in each row that has merged this part
};

struct AttentionArgs {
  Tensor q, k, v, out, dout, dq, dk, dv;
  Rows lse, dlse;
  /// Workspace of the backward pass. P = 2^((score - largest) kappa - lse2). Usually largest = 0 and lse2 = lse * log2(e); far rows
  /// (docs/numerics.md) have the recomputed largest score and log2(sum). lse2 is +inf for rows without keys, and natural for f32 and f64.
  Rows lse2, largest;
  Rows delta;  ///< row sums of dout * out, less dlse
  int batch, heads_q, heads_kv, group_size;
  int seqlen_q, seqlen_kv;  ///< packed and paged: the maximum
  int tiles_q, tiles_kv;
  long long q_offset, kv_offset;
  const void* cu_seqlens_q;  ///< null unless packed
  const void* kv_lengths;    ///< see KeyRows
  double scale;
  DropoutArgs dropout;
  TileRuns runs;             ///< rows are q tiles
  TileRuns runs_transposed;  ///< rows are kv tiles
  ScoreArgs score;
  ParamGradient gradient[kMaxParams];
  PartArgs part;
};

}  // namespace foveal::device
