#pragma once
// What a kernel is told at run time. Shared with the host: plain types only.
// No byte lies between members (tests/cuda/args_test.cpp), so that equal launches have equal bytes, which who records them relies on.

namespace foveal::device {

/// q, k, v, out and their gradients: strides in elements for [batch, seqlen, heads, dim]. Packed tensors have batch stride 0.
struct Tensor {
  void* data;
  long long batch, seq, head, dim;
  int copy_bytes;  ///< 16 or 4: rows may be copied in such pieces; 0: element by element
  int unused;
};

/// lse, dlse, delta: strides for [batch, heads, seqlen].
struct Rows {
  void* data;
  long long batch, head, seq;
};

/// Where the keys of a sequence lie, and what AttentionArgs::kv_lengths holds. batched: seqlen_kv in each row of the batch, no lengths. packed: one
/// after the other, cu_seqlens_kv. paged: on pages, seqlens_kv. gathered: those of pages copied together, seqlen_kv rows for each sequence, of
/// which so many exist as seqlens_kv says; their gradients are wide (f32 for types of 16 bits) and summed into pages afterwards.
/// spread: those of each sequence in stretches of two memories (SpreadKeys).
enum class KeyRows { batched, packed, paged, gathered, spread };

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

/// Where the gradient of a parameter is collected: `bins` for exact sums (score/exact_sum.cuh), `values` for plain stores.
struct ParamGradient {
  unsigned long long* bins;
  long long elements;
  void* values;
  long long stride[kMaxParamRank];  ///< of values, in elements
};

constexpr int kMaxNumbers = 16;

struct ScoreArgs {
  ParamView param[kMaxParams];
  float number[kMaxNumbers];  ///< constants of the score that its text calls by their place here
};

/// Consecutive tiles [begin, end) that a tile row visits; when not full, the mask must be evaluated. covered: each key of these tiles is kept by some query
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
  int all_full;  ///< without runs: no mask needs evaluating
  int unused;
};

struct DropoutArgs {
  unsigned long long seed, offset;
  const unsigned long long* state;  ///< of the device: {seed, offset} instead of the two above; null: there is none
  unsigned threshold;               ///< a pair is kept when its bits are >= this
  float keep_scale;                 ///< 1 / (1 - p)
  double keep_scale_f64;
};

/// A part of an attention (config.cuh: kPart): its results are added to what is there.
struct PartArgs {
  int adds_to_q, adds_to_kv;             ///< 0: nothing is there yet
  int batch_offset, head_offset, heads;  ///< of the whole, for dropout
  unsigned number;                       ///< in the last bits of lse of each row that has met this part
};

struct AttentionArgs {
  Tensor q, k, v, out, dout, dq, dk, dv;
  Rows lse, dlse;
  /// Workspace of the backward pass. Probabilities are 2^((score - largest) kappa - lse2): largest is 0 and lse2 = lse * log2(e), but for far rows
  /// (docs/numerics.md), where they are what the pass measured, the largest score and log2(sum). lse2 is +inf for rows without keys; natural for f32 and f64.
  Rows lse2, largest;
  Rows delta;  ///< row sums
  int batch, heads_q, heads_kv, group_size;
  int seqlen_q, seqlen_kv;  ///< packed, and of keys on pages: the maxima
  int tiles_q, tiles_kv;
  long long q_offset, kv_offset;
  const void* cu_seqlens_q;  ///< null unless packed
  const void* kv_lengths;    ///< what KeyRows says
  double scale;
  DropoutArgs dropout;
  TileRuns runs;             ///< rows are q tiles
  TileRuns runs_transposed;  ///< rows are kv tiles
  ScoreArgs score;
  ParamGradient gradient[kMaxParams];
  PartArgs part;
};

}  // namespace foveal::device
