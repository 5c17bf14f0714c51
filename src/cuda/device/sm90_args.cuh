#pragma once
// Arguments of the sm_90 kernels besides AttentionArgs. Shared with the host: plain types only.
#include "args.cuh"

namespace foveal::device {

/// Filled by cuTensorMapEncodeTiled; passed as a kernel parameter so that TMA can read it.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

/// Division by an invariant (FastDivmod): n / d = (umulhi(n, multiplier) + n) >> shift, for n below 2^31.
struct Divisor {
  int value;
  unsigned multiplier, shift;
};

/// How tasks (rows of tiles) of all heads are assigned to CTAs; see schedule/tasks.cuh.
struct TaskOrder {
  int tasks;              ///< of the whole grid
  int rows;               ///< tasks of one head
  int first_row_first;    ///< a section starts with row 0 instead of the last row
  int serpentine;         ///< every other round is dealt in reverse (serpentine)
  int sequences_inside;   ///< order [head][sequence] instead of [sequence][head]
  Divisor inside;         ///< heads of a sequence, or sequences of a head
  Divisor section_heads;  ///< heads (of all sequences) whose tasks are interleaved
  Divisor last_heads;     ///< the same for the last section, which may be smaller or larger
  Divisor section_tasks;  ///< section_heads * rows
  int last_section;
};

constexpr int kMaxPairTiles = 2;

/// Warps of a CTA of kernels/merge_splits_sm90.cuh.
constexpr int kMergeWarps = 8;

/// Softmax state of one row over one split of the keys: sum of 2^((score - reference) exponent); reference -inf: no key is kept.
struct SplitRow {
  float reference, sum;
};

/// Keys that one part of an attention has processed, for rows [first_row, end_row) whose state is kept from part to part.
struct KeptKeys {
  Tensor k, v;
  long long kv_offset;
  int len_kv, first_row, end_row, unused;
};

/// Rows whose state is kept from part to part (BackwardRowsConfig::keeps_rows).
struct KeptRows {
  KeptKeys* keys;     ///< one for each part
  int number, count;  ///< index of this part; parts so far
  int first_row;      ///< first row of this part
  int begins;         ///< this launch prepares the rows
  int measures;       ///< recompute far rows over this part's keys, and record the keys
  int other_stream;   ///< offset from this part's statistics to those of concurrent parts, in units of kRowStep rows
};

/// Among how many tasks something is divided that one task could do whole. No kernel divides both.
union TaskParts {
  Divisor kv_splits;    ///< forward: the keys of a row of tiles (split-KV)
  Divisor group_tasks;  ///< backward: the query heads of a kv head
};

struct Sm90Args {
  TensorMap q, k, v, dout;
  TensorMap pairs[kMaxPairTiles];  ///< of reads that arrive as tiles; see tile/pair_tiles.cuh
  AttentionArgs attention;
  TaskOrder order;
  int band_low, band_high;  ///< TileSource causal, band: keep when band_low <= kv - q <= band_high, positions local to the sequence
  /// Backward: rows of lse2 and delta (and of the dq accumulator) for each head, a multiple of kRowStep. Packed: for each head over all
  /// sequences, which begin at their padded_first_row() (layout/agreed.cuh).
  int stat_rows;
  float scale;          ///< as AttentionArgs::scale; converting from double is slow
  unsigned short* far;  ///< backward: one flag for eight rows of statistics: is some row far, that is, largest not 0?
  float* dq_sum;        ///< backward: fp32 accumulator of dq, in accumulator order of kernels/backward_sm90.cuh
  /// Deterministic backward: how many key blocks have been added to each query tile, for each of kSumCtas (tile/dq_sum.cuh).
  unsigned* dq_semaphore;
  TaskParts parts;
  int merge_warps;  ///< split-KV: warps of the merge kernel that share a row, 1 to kMergeWarps
  /// Split-KV: each split writes split_rows rows of head_dim_v floats and of SplitRow, ordered by token, then head, which
  /// kernels/merge_splits_sm90.cuh merges.
  float* split_out;
  SplitRow* split_softmax;
  float* split_exponent;  ///< scores to powers of two, for all scores
  long long split_rows;
  BlockTable pages;  ///< KeyRows::paged
  KeptRows kept;     ///< backward
};

/// KeyRows::spread: keys [first, first of the next range) are rows first + shift, ..., of the own k and v or of the received ones.
struct KeyRange {
  int first, shift;
  int word;          ///< kOwnKeys, kHereKeys, or the index of the word that signals arrival
  unsigned arrived;  ///< arrived once the counter reaches this
  int slices;        ///< of kv heads, which double (Part::KeyRange): the counter is one lower for each that is missing
};
constexpr int kMaxKeyRanges = 16, kOwnKeys = -2, kHereKeys = -1;

struct SpreadKeys {
  TensorMap k, v;                                      ///< of received keys
  TensorMap tile_k, tile_v, sent_tile_k, sent_tile_v;  ///< for tiles within one range: own, received
  KeyRange range[kMaxKeyRanges];
  const unsigned* words;
  const unsigned* failed;  ///< nonzero: a peer failed, stop waiting
  int count;
  int heads;       ///< kv heads
  int unused[10];  ///< pads to the alignment of tensor maps
};

/// For kernels/forward_sm90.cuh and decode_sm90.cuh with KeyRows::spread.
struct SpreadArgs : Sm90Args {
  SpreadKeys spread;
};

/// For kernels/pairs_sm90.cuh; the order has `row_parts` tasks for each row of tiles.
struct PairsArgs {
  Sm90Args sm90;
  Divisor row_parts;
  int unused[13];  ///< pads to the alignment of tensor maps
};

}  // namespace foveal::device
