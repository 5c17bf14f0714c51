#pragma once
// The microkernel interface: operations on one block of keys and one tile of lanes. The passes (forward.cpp,
// backward.cpp) are written once, in ordinary code, over this table; a target fills it from the templates beside this
// file (plain_ops.h) or with operations of its own.
//
// Everything is S^T: a score tile is Real[block_kv][tile_lanes], one row per key, one lane per (query head, query). Three matrix
// products do the work, one for each index that is reduced:
//
//   dot     tile[key][lane]  = sum over d of  operand[key][d] * panel[d][lane]           S^T = K Q^T, dP^T = V dO^T
//   mix     acc[d][lane]    += sum over key of operand[key][d] * weights[key][lane]      O^T += V^T P^T, dQ^T += K^T dS^T
//   spread  acc[key][d]     += sum over lane of weights[key][lane] * rows[lane][d]       dV += P^T dO, dK += dS^T Q
//
// Accumulators and tiles are Real; the layouts of panel, rows, operand and weights are private to a table:
//   plain (fp32, fp64)  panel [d][tile_lanes], rows [lane][padded d], operand = the tensor's own rows where they can be used as they are,
//                       weights = the tile itself
//   f16 (FMLAL)         the same, but the panel and the operand of dot are f16
//   bf16 (VDPBF16PS)    panel [d / 2][tile_lanes][2], rows [lane / 2][padded d][2], operand = K rows for dot and pairs of rows for mix,
//                       weights = P rounded, [key][lane] for spread and [key / 2][lane][2] for mix
//   bf16 (AMX)          the same idea in tiles of 16 x 32
//   decode              panel [lane][padded d], operand = the tensor's own rows, weights = the tile itself
//
// Rules. Buffers are aligned to 64 bytes. Lane counts are multiples of 16, at most tile_lanes, which is the distance between the rows of a
// tile and of mix's accumulators; those of dot and mix are multiples of lane_multiple, as are softmax's where that is less. A key range
// [begin, end) indexes the rows of the block; begin is a multiple of key_multiple, end is at most block_kv, and dot may write rows up to
// the next multiple of key_multiple (their contents do not matter: operations that need zeros there write them). This header and all that
// targets include use no templates or inline functions of std: see targets/targets.cmake.
#include <cstddef>
#include <cstdint>

#include "foveal/tensor.h"

namespace foveal::cpu {

/// The largest head dim of q and k, and of v. Larger ones are refused; kernels size what they keep on the stack by it.
constexpr int max_head_dim = 1024;

/// The row of q, dout or out behind each lane of a tile; null rows read as zeros.
struct LaneRows {
  const void* const* row;
  int lanes;
  std::int64_t stride;  ///< between the elements of a row
  DType dtype;
};

/// The same for output; null rows are skipped.
struct LaneRowsOut {
  void* const* row;
  int lanes;
  std::int64_t stride;
  DType dtype;
};

/// Consecutive rows of one head of k or v (const) or of dk or dv.
struct KeyRows {
  const void* data;
  std::int64_t row_stride, stride;  ///< elements
  DType dtype;
};
struct KeyRowsOut {
  void* data;
  std::int64_t row_stride, stride;
  DType dtype;
};

/// What a block is prepared for.
struct OperandUse {
  bool dot = false, mix = false;
};
/// A block of k or v prepared for dot and mix. Strides in elements of the table's own layout.
struct Operand {
  const void* dot = nullptr;
  std::int64_t dot_stride = 0;
  const void* mix = nullptr;
  std::int64_t mix_stride = 0;
};

struct KeyRange {
  int begin, end;
};

/// Lane i attends to rows first[i] <= row < last[i]; null pointers: to all.
struct LaneRanges {
  const std::int32_t* first = nullptr;
  const std::int32_t* last = nullptr;
};

/// Where rounded probabilities are written besides the tile; null where a form is not needed. Unused where the tile itself is the weights.
struct Weights {
  void* mix = nullptr;
  void* spread = nullptr;
};

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }
/// Row length of dk and dv accumulators and of packed rows; rows of out and dq accumulators.
constexpr int padded_dim(int dim) { return round_up(dim, 16); }

/// Consecutive granules of 32 keys that a tile of queries visits. Up to granule `whole` all keys are unmasked; a span with more lies in one
/// block, and `ranges` has its rows. No two spans share a block.
struct KeySpan {
  static constexpr int granule = 32;
  std::int32_t begin, whole, end;
  LaneRanges ranges;
};

/// Arguments of a packed forward kernel: a tile of queries, its running state, and the keys that it visits.
struct ForwardVisit {
  const void *q, *k, *v;    ///< packed; k and v: blocks of the whole sequence
  float *acc, *max, *sums;  ///< sums: two sets of 16 for each row; the first is live between visits
  void* scratch;
  const KeySpan* spans = nullptr;
  int count = 0;  ///< of spans
  float multiplier;
  int dim, dim_v, block;
};

/// Layouts of packed queries, keys and values, and of the accumulators. Sizes in bytes, of a tile of queries or of `keys` keys.
struct PackedLayout {
  int rows;  ///< queries of a tile
  std::size_t (*q_bytes)(int dim);
  std::size_t (*acc_bytes)(int dim_v);
  std::size_t (*k_bytes)(int keys, int dim);
  std::size_t (*v_bytes)(int keys, int dim_v);
  void (*pack_q)(const LaneRows& rows, int dim, float sign, void* packed);
  /// A block, of which the first `keys` exist.
  void (*pack_k)(const KeyRows& rows, int keys, int block, int dim, void* packed);
  bool (*pack_v)(const KeyRows& rows, int keys, int block, int dim, void* packed);         ///< false: not all finite
  void (*write)(const float* acc, int dim, const float* factor, const LaneRowsOut& rows);  ///< row[i] = acc[i] * factor[i], 0 where that is
};

/// A forward kernel for bf16 without score_mod where masks are ranges of keys (amx_forward.h).
struct PackedForwardOps {
  PackedLayout layout;
  int (*block)(int dim, int dim_v);
  std::size_t (*scratch_bytes)(int block);
  void (*visit)(const ForwardVisit& visit);
  void (*add_sums)(const float* sums, float* row_sums);
};

/// A block of keys that a tile of queries visits. partial: the mask may drop pairs.
struct ScoredBlock {
  std::int32_t block;
  int keys;  ///< that exist
  bool partial;
};

/// Arguments of a forward kernel with programmed scores: a tile of queries, its running state, and the blocks of keys that it visits.
struct ScoredVisit {
  const void *q, *k, *v;   ///< packed; k and v: blocks of the whole sequence
  float *acc, *max, *sum;  ///< max in the numbers of a tile of scores
  void* scratch;
  const ScoredBlock* blocks = nullptr;
  int count = 0;
  float log2;  ///< a number of the tile times this is a score in base 2
  int dim, dim_v;
  /// Dot products in tile[key][lane] become scores, -inf where the mask drops a pair. True: largest[lane] is the largest score of each
  /// lane.
  bool (*score)(const void* context, const ScoredBlock& block, float* tile, float* largest) = nullptr;
  const void* context = nullptr;
};

/// A forward kernel for bf16 with scores and masks by programs (amx_scored_forward.h).
struct ScoredForwardOps {
  PackedLayout layout;
  int block;
  std::size_t scratch_bytes;
  void (*visit)(const ScoredVisit& visit);
};

/// A tile of queries in a packed backward pass.
struct QueryTile {
  const void *q_panel, *dout_panel;  ///< packed for the scores and dP
  const void *q_pairs, *dout_pairs;  ///< packed for dk and dv
  const float *lse, *delta;          ///< of each query; lse in the unit of the multiplier, infinity where P is 0
  float* dq;
  LaneRanges ranges;  ///< null: every key. With programs, which keys need not be looked at.
};

/// The programs of scores and masks in a packed backward pass, for 32 keys from `key` on of the block and the visit's tile of that number,
/// as tile[key][lane].
struct BackwardPrograms {
  /// Dot products become scores, -inf where the mask drops a pair. The result is how many of the keys exist.
  int (*score)(const void* context, int tile, int key, float* scores);
  /// ds becomes d loss / d (dots * scale), and gradients of parameters are added. Null: nothing to do.
  void (*differentiate)(const void* context, int tile, int key, const float* dots, float* ds);
  const void* context;
  bool reads_dots;  ///< differentiate() does
};

/// Arguments of a packed backward kernel: a block of keys and the tiles of queries that attend to it.
struct BackwardVisit {
  const void *k, *v, *k_columns;  ///< packed for the scores, for dP, for dq
  float *dk, *dv;
  bool first;  ///< overwrite dk and dv
  void* scratch;
  const QueryTile* tiles;
  int count;
  float multiplier;
  int dim, dim_v;
  const BackwardPrograms* programs = nullptr;  ///< of amx_scored_backward.h
};

/// A backward kernel over packed queries, keys and values, under the conditions of PackedForwardOps (amx_backward.h) or of ScoredForwardOps
/// (amx_scored_backward.h). Sizes in bytes.
struct PackedBackwardOps {
  int lanes, keys;                                 ///< of a tile of queries, of a block of keys
  float unit;                                      ///< the exponential takes scores in base 2 times this; 0: scores themselves
  std::size_t (*packed_bytes)(int rows, int dim);  ///< one layout of a tile or block
  std::size_t (*acc_bytes)(int rows, int dim);     ///< dq of a tile, dk of a block
  std::size_t scratch_bytes;
  void (*row_dots)(const LaneRows& a, const LaneRows& b, int dim, float* result);
  /// Both layouts of a tile's rows. False: not all finite.
  bool (*pack_queries)(const LaneRows& rows, int dim, void* panel, void* pairs);
  /// A block's rows, and their columns unless null. False: not all finite.
  bool (*pack_keys)(const LaneRows& rows, int dim, void* packed, void* columns);
  void (*visit)(const BackwardVisit& visit);
  void (*write_queries)(const float* dq, int dim, float factor, const LaneRowsOut& rows);
  /// The sum of `count` accumulators, in order.
  void (*write_keys)(const float* const* parts, int count, int dim, float factor, const LaneRowsOut& rows);
};

/// The kernels over packed tensors: without programs, and with them.
struct PackedOps {
  PackedForwardOps forward;
  ScoredForwardOps scored_forward;
  PackedBackwardOps backward, scored_backward;
};

/// The unit of a tile of scores. Maxima are kept in units in which no finite score overflows: scores themselves, or half scores in base 2
/// where the tile holds unscaled dot products.
template <class Real>
struct ScoreScale {
  Real log2, natural;            ///< a number times this is a score in base 2, a score
  Real unit;                     ///< ... a score in units
  Real unit_log2, unit_natural;  ///< one unit

  static constexpr double kLog2e = 1.4426950408889634074, kLn2 = 0.69314718055994530942;
  static constexpr ScoreScale of_scores() { return {static_cast<Real>(kLog2e), 1, 1, static_cast<Real>(kLog2e), 1}; }
  static constexpr ScoreScale of_dots(double scale) {
    const Real log2 = static_cast<Real>(scale * kLog2e);
    return {log2, static_cast<Real>(static_cast<double>(log2) * kLn2), log2 / 2, 2, static_cast<Real>(2 * kLn2)};
  }
};

/// A maximum of this size or more is far: the maximum is subtracted before the conversion to base 2. One fused multiply-subtract, as is
/// used near 0, would expose the rounding of the maximum in base 2.
constexpr int far_units = 4096;

template <class Real>
struct BlockOps {
  const char* name;  ///< target and type, "avx512.f32": part of kernel()
  int tile_lanes;
  int block_kv;
  int key_multiple;
  /// Weights are the tile, and pointers to tiles may be advanced by a multiple of 16 lanes.
  /// Otherwise weights have buffers of 2-byte elements.
  bool weights_in_tile;
  int panel_lane_bytes;  ///< from a lane of a panel to the next
  int lane_multiple;     ///< of dot and mix

  // Packing. Sizes in bytes.
  std::size_t (*panel_bytes)(int dim);
  std::size_t (*rows_bytes)(int dim);
  std::size_t (*operand_bytes)(int dim);
  /// panel = rows^T * sign (1 or -1).
  void (*pack_panel)(const LaneRows& rows, int dim, Real sign, void* panel);
  void (*pack_rows)(const LaneRows& rows, int dim, void* packed);
  /// Whether all elements are finite.
  bool (*finite)(const LaneRows& rows, int dim);
  /// The first `keys` rows, for dot, mix or both; copied to `scratch` (operand_bytes) where they cannot be used in place.
  Operand (*prepare)(const KeyRows& rows, int keys, int dim, OperandUse use, void* scratch);

  // The three products.
  void (*dot)(const Operand& keys, const void* panel, KeyRange range, int lanes, int dim, Real* tile);
  void (*mix)(const Operand& keys, const void* weights, KeyRange range, int lanes, int dim, Real* acc);
  void (*spread)(const void* weights, const void* rows, KeyRange range, int lanes, int dim,
                 Real* acc);  ///< acc rows: padded_dim(dim) apart

  // Softmax: p = 2^(score - max).
  /// Online softmax: scores become probabilities in place and are added to sum. max, in units, is lazy: it is raised only where a score
  /// exceeds it by more than 2^8; then the result is true, sum has been rescaled, and `factor` is what to rescale the accumulators by.
  /// lane_max: the largest scores, in units, if known, else null. Scores of -inf and those outside ranges give exact zeros. Writes
  /// weights.mix.
  bool (*softmax)(Real* tile, KeyRange range, int lanes, const ScoreScale<Real>& scale, LaneRanges ranges, const Real* lane_max, Real* max,
                  Real* sum, Real* factor, Weights weights);
  /// tile = exp(score - far[lane] - lse[lane]), for the backward; far in units, null where all are 0. In natural units, because rounding
  /// lse once more, to base 2, would show in dv. Writes weights.spread.
  void (*probabilities)(Real* tile, KeyRange range, int lanes, const ScoreScale<Real>& scale, LaneRanges ranges, const Real* far,
                        const Real* lse, Weights weights);
  /// ds = p * (dp - delta[lane]) in place of dp, exact zeros where p is zero. Writes both weights. (softmax and score_gradient may leave
  /// the tile unspecified when they write weights.)
  void (*score_gradient)(const Real* p, Real* dp, KeyRange range, int lanes, const Real* delta, Weights weights);
  /// Rounds a tile that something else changed last to weights.
  void (*round_weights)(const Real* tile, KeyRange range, int lanes, Weights weights);

  // Accumulators and rows.
  void (*scale_lanes)(Real* acc, int dim, int lanes, const Real* factor);  ///< acc[d][lane] *= factor[lane]
  void (*write_lanes)(const Real* acc, int dim, const Real* factor,
                      const LaneRowsOut& rows);  ///< row[lane][d] = acc[d][lane] * factor[lane]
  void (*write_keys)(const Real* acc, int keys, int dim, Real factor, const KeyRowsOut& rows);  ///< row[key][d] = acc[key][d] * factor
  void (*row_dots)(const LaneRows& a, const LaneRows& b, int dim, Real* result);                ///< result[lane] = a . b

  // Called around a task, on its thread; may be null. (AMX: the tile configuration.)
  void (*enter)() = nullptr;
  void (*leave)() = nullptr;

  const PackedOps* packed = nullptr;  ///< if there are such kernels
};

/// Tables for the forward pass over tiles of few lanes (decode_ops.h), by the type of the tensors.
struct DecodeTables {
  BlockOps<float> f32, bf16, f16;
  BlockOps<double> f64;
  int f32_lanes;  ///< up to so many lanes the table for f32 is the faster one; the others are up to most_lanes
  static constexpr int most_lanes = 8;
};

}  // namespace foveal::cpu
