#pragma once
// The parameter blocks of the sm_90 kernels: one layout, read by the kernels (NVRTC) and filled by launch/.

/// What cuTensorMapEncodeTiled fills; a kernel parameter, so that the copy engine can read it.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

/// Consecutive kv tiles (q tiles when transposed) of one tile row; the same three words as mask::Run.
struct TileRun {
  int begin, end;
  int full;
};

/// Which pairs may interact and how the grid walks them. Positions are local to the sequence.
struct TileSpace {
  int batch, heads_q, heads_kv, group_size;
  int seqlen_q, seqlen_kv;    ///< varlen: the maxima
  int q_offset, kv_offset;    ///< global position = local + offset
  int band_low, band_high;    ///< TileSource band: kept when band_low <= kv - q <= band_high
  int tiles;                  ///< tasks of the whole grid
  int tiles_per_head;
  int section_heads;          ///< heads (of all sequences) whose tasks are interleaved; 1: one head after the other
  int first_row_first;        ///< tasks of a section begin with tile row 0 instead of the last one
  int run_rows;               ///< TileSource list: rows of runs of one head; 0 when all heads share one list
  const long long* run_begin; ///< TileSource list: rows + 1 offsets for each list
  const TileRun* runs;
  const int* cu_seqlens_q;    ///< varlen
  const int* cu_seqlens_kv;
};

/// Elements of a [batch, seqlen, heads, dim] tensor with dim contiguous; strides in elements.
struct RowTensor {
  void* data;
  long long batch_stride, row_stride, head_stride;
};

/// Dropout by Philox of the global position; see base/philox.h.
struct DropoutArgs {
  unsigned seed_low, seed_high, offset_low, threshold;
  float keep_scale;  ///< 1 / (1 - p)
};

struct ForwardArgs {
  TensorMap q, k, v;
  TileSpace space;
  RowTensor out;
  float* lse;  ///< null: not wanted
  long long lse_batch_stride, lse_head_stride, lse_row_stride;
  const float* sink;  ///< one logit for each query head
  float scale;        ///< of q . k, positive
  DropoutArgs dropout;
};

/// Backward. The statistics and the sum of dq are in workspace: for each head (of each sequence) `stat_rows` rows, a multiple of 128; packed
/// sequences begin at row (cu_seqlens_q[b] + 128 b) / 128 * 128.
struct BackwardArgs {
  TensorMap q, k, v, dout;
  TileSpace space;         ///< rows are kv tiles
  RowTensor out, grad_out; ///< as q's rows
  RowTensor dq, dk, dv;
  const float *lse, *dlse; ///< dlse: null when there is none
  long long lse_batch_stride, lse_head_stride, lse_row_stride;
  long long dlse_batch_stride, dlse_head_stride, dlse_row_stride;
  float* lse2;             ///< lse in base 2, +inf for rows without keys and rows that do not exist
  float* delta;            ///< row sums of dout * out, less dlse
  float* dq_sum;           ///< fp32, in the order of the accumulators of kernels/backward_sm90.cuh
  int stat_rows;           ///< rows of statistics of one head; packed: of one head over all sequences
  float scale;
  DropoutArgs dropout;
};
