#pragma once
// What the sm_90 kernels are told besides AttentionArgs. Shared with the host: plain types only.
#include "args.cuh"

namespace foveal::device {

/// What cuTensorMapEncodeTiled fills; a kernel parameter, so that TMA can read it.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

/// Division by a number known before the launch: n / d = (high half of n * multiplier + n) >> shift, for n below 2^31.
struct Divisor {
  int value;
  unsigned multiplier, shift;
};

/// How the tasks (rows of tiles) of all heads are dealt to the CTAs; see schedule/tasks.cuh.
struct TaskOrder {
  int tasks;              ///< of the whole grid
  int rows;               ///< tasks of one head
  int first_row_first;    ///< a section begins with row 0 instead of the last row
  int to_and_fro;         ///< every other round is dealt in reverse
  int sequences_inside;   ///< the sequences of one head follow each other instead of the heads of one sequence
  Divisor inside;         ///< heads of one sequence, or sequences of one head
  Divisor section_heads;  ///< heads (of all sequences) whose tasks are interleaved
  Divisor last_heads;     ///< the same of the last section, which may be smaller
  Divisor section_tasks;  ///< section_heads * rows
};

constexpr int kMaxPairTiles = 2;

/// What the softmax of a part of the keys was, for one row: sum of 2^((score - reference) exponent); reference -inf: it keeps none.
struct SplitRow {
  float reference, sum;
};

/// Keys that a part of an attention met, of rows that keep what is found of them from part to part: rows first_row to end_row of these.
struct KeptKeys {
  Tensor k, v;
  long long kv_offset;
  int len_kv, first_row, end_row, unused;
};

/// What of such rows a call does (config.cuh: kKeepsRows).
struct KeptRows {
  KeptKeys* keys;     ///< of each part
  int number, count;  ///< of this part, and of all that have been
  int first_row;      ///< of this part's
  int begins;         ///< they are prepared
  int measures;       ///< far ones are measured over this part's keys, and the keys noted
  int other_lane;     ///< from statistics of this part to those of parts at its side, in 128 rows
};

struct Sm90Args {
  TensorMap q, k, v, dout;
  TensorMap pairs[kMaxPairTiles];  ///< of reads that come as tiles; see tile/pair_tiles.cuh
  AttentionArgs attention;
  TaskOrder order;
  int band_low, band_high;  ///< TileSource causal, band: kept when band_low <= kv - q <= band_high, positions local to the sequence
  /// Backward: rows of lse2 and delta (and of dq's sum) of one head, a multiple of 128. Packed: of one head over all sequences, of which each
  /// begins at row (cu_seqlens_q[b] + 128 b) / 128 * 128.
  int stat_rows;
  unsigned short* far;  ///< backward: does some of eight rows of statistics have to be less its largest score? 0: largest is 0
  float scale;          ///< that of AttentionArgs: conversions of doubles are slow
  int unused;
  float* dq_sum;  ///< backward: fp32, in the order of the accumulators of kernels/backward_sm90.cuh
  /// Reproducible backward: how many rows of keys have added to each tile of queries, for each of kSumCtas (tile/dq_sum.cuh).
  unsigned* dq_semaphore;
  /// Forward, few queries: so many tasks (which the order counts) take a part each of the keys of a row of tiles, for kernels/merge_splits_sm90.cuh. Each
  /// writes split_rows rows, of kHeadDimV floats and of SplitRow: in the order of tokens, and for a token of heads.
  Divisor splits;
  int unused_too;
  float* split_out;
  SplitRow* split_softmax;
  float* split_exponent;  ///< of all scores, to powers of two
  long long split_rows;
  BlockTable pages;  ///< KeyRows::paged
  KeptRows kept;     ///< backward
};

/// Of KeyRows::spread: keys from `first` on, up to the next stretch, stand in rows from first + shift on, of k and v or of what others sent.
struct KeyStretch {
  int first, shift;
  int word;          ///< kOwnKeys, kHereKeys, or which word says that they are here
  unsigned arrived;  ///< it counts up, and holds this or more then
};
constexpr int kMaxStretches = 16, kOwnKeys = -2, kHereKeys = -1;

struct SpreadKeys {
  TensorMap k, v;                                      ///< of what others sent
  TensorMap tile_k, tile_v, sent_tile_k, sent_tile_v;  ///< of tiles that lie in one stretch: own ones, and those that others sent
  KeyStretch stretch[kMaxStretches];
  const unsigned* words;
  const unsigned* failed;  ///< not 0: nobody is to wait any more
  int count;
  int unused[11];  ///< to the alignment of tensor maps
};

/// For kernels/forward_sm90.cuh and decode_sm90.cuh with KeyRows::spread.
struct SpreadArgs : Sm90Args {
  SpreadKeys spread;
};

/// For kernels/pairs_sm90.cuh; the order counts `splits` tasks for each row of tiles.
struct PairsArgs {
  Sm90Args sm90;
  Divisor splits;
  int unused[13];  ///< to the alignment of tensor maps
};

}  // namespace foveal::device
