#pragma once
// The score and mask of this problem, written by score_emit:
//   constexpr bool kHasScore, kHasMask, kHasSink;
//   real score_in_units(score, at, args)       the modified score / score_unit
//   real score_unit(score, at, args)           for an exponent to take in: the same for all pairs of a head; in forward passes a positive constant, but for the scale
//   real slope_in_units(score, at, args)       d modified / d score / slope_unit; kSlopeOfScore: it depends on the score
//   real slope_unit(score, at, args)           for dq and dk to take in: the same for all pairs of a head, and for all heads that share keys
//   bool mask_keep(at, args)
//   real sink_logit(head, args)
// and for each trainable read r < kReads (kReadKind[r]: how it is reduced; kReadParam[r], kReadRank[r]: its parameter; kReadStores[r]: each
// element is written once, as a ReadGradient<r>):
//   real read_factor_in_units<r>(score, at, args)
//                                              d modified / d read / read_unit<r>; kFactorOfScore[r]: it depends on the score; kFactorIsOne[r], kFactorIsFinite[r]:
//                                              for all pairs
//                                              kFollowsFromDk[r]: it is the raw score, and the sum of all terms that of k . dk
//   real read_unit<r>(score, at, args)         for the sum over pairs to take in: the same for all pairs of a head
//   void read_index<r>(score, at, args, index) the indices, clamped into the parameter
//   int read_bin<r>(score, at, args)           where its terms are summed in shared memory (tile/read_bins.cuh; kBinCopies[r], kBinEntries[r]): the number of
//                                              the element among those that differ in the dimensions kBinDims[r], a bit each
// kReadRowDim[r], kReadColumnDim[r]: of a kElement read, the dimensions of q and kv.
// kSinkParam: the sink's position when its gradient is wanted, else -1.
// `score` is the raw score q . k with its scale; real is float, or double for f64 inputs.
//
// Kernels that evaluate what is the same along a line of a tile apart from its pairs (tile/line_values.cuh) find the functions for that,
//   real walk_value<v>(at, args), v < kWalkValues           the same for all pairs of one position along the walk of a task
//   real diagonal_value<v>(at, args), v < kDiagonalValues   the same for all pairs of one diagonal
// and hand the values in as at.walk[v], at.diagonal[v]. For other kernels there are none. Likewise at.row[v] = row_value<v>(at, args), v < kRowValues: what is the
// same for all pairs of a row; and at.loaded[v], v < kPairReads: reads of one element per
// pair, which a kernel loads ahead of the scores: a PairElementOf<v>, pair_origin<v>(at, args) + pair_step<v>(at, args) bytes into parameter kPairParam[v]; the origin
// is the same for all pairs of a thread. And at.tiled[v], v < kPairTiles: reads that a kernel gets as tiles of PairTileElementOf<v> (tile/pair_tiles.cuh);
// pair_tile_place<v>(at, args, place): where a pair is in the tensor map, {column, row, ...}. And at.table[t], t < kTables: where a parameter's elements for one
// batch and head are in shared memory (tile/read_tables.cuh), those that differ in the dimensions kTableDims[t], a bit each, rows of kTableRow[t] of them padded to kTablePaddedRow[t]; table_index<t>(at, args, index): those
// that differ not. And at.tanh where kTanhAhead: tanh(raw score * tanh_factor) *
// tanh_times,
//   real tanh_factor(score, at, args), tanh_times(score, at, args)
// kCappedScore: the modified score / score_unit is at.tanh itself. kSumScore: the modified score is raw score * score_gain + the sum over o < kOffsets of
// offset_in_units<o> * offset_row<o> * offset_unit<o>; in backward passes there is one of them,
//   real offset_in_units<o>(score, at, args)                                does not depend on the score
//   real offset_row<o>(score, at, args)                                     the same for all pairs of a row; 1 where not kOffsetHasRow[o]
//   real score_gain(score, at, args), offset_unit<o>(score, at, args)       the same for all pairs of a head
// What is the same for all pairs of a head does not use the raw score.
// kOffsetsInScores: instead it is (raw score + the sum) * score_unit, offset_unit is divided by that, and score_in_units leaves the raw score as it is.
// kOffsetsFirst: scores begin as this sum, and the product q . k is added to it. Then a table may have its factor already (kTableIsScaled[t]),
//   real table_unit<t>(score, args)
// and the offset that reads it has none (kOffsetIsScaled[o]).
// kOffsetsAreColumns: each offset is the product of at.walk[kOffsetWalk[o]] and offset_row * offset_unit, which tensor cores add up (tile/extra_columns.cuh).
//
// kPairRun[v], kPairRepeats[v]: the element of at.loaded[v] is the same for blocks of so many keys (0: it is not), and the same again 64 keys on. For the kernel that
// sums the reads of tables for each query (kernels/rows_sm90.cuh), number i < kRowReads of which is the trained read kRowRead[i]:
//   int row_bin<i>(at, args)      the number of the element among the kRowEntries[i] of a query, those that differ in the dimensions kRowDims[i], a bit each
// kRowRun, kRowRepeats, kRowDistinct, kRowAny: how it goes along the keys; kRowStored: it is written as a RowGradientOf<i>, and not added.
#include "score/functions.cuh"

namespace foveal::device {

/// Where a pair is: global positions, and the lengths of its sequence. A kernel that knows how far q and kv are from places that all pairs of a thread
/// share says so in the steps: constants, once its loops are unrolled. key_block: steps along kv stay below it, and kv - kv_step is a multiple of it and a rest that
/// stays below 8 with kv_step % 8 added; 0: nothing is known.
struct Position {
  int batch, head, q, kv, seqlen_q, seqlen_kv;
  int q_step = 0, kv_step = 0;
  int key_block = 0;
};

/// A product q . k and its scale, apart, so that emitted text can merge the scale with factors of its own; or a product already scaled.
struct Score {
  real raw, scale;
  FOVEAL_DEVICE Score(real scaled) : raw(scaled), scale(1) {}
  FOVEAL_DEVICE Score(real raw, real scale) : raw(raw), scale(scale) {}
  FOVEAL_DEVICE operator real() const { return raw * scale; }
};

/// A word of a table in shared memory, `bytes` from its first; nothing else is written there while pairs are evaluated.
FOVEAL_DEVICE float load_table(u32 table, int bytes) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(table + bytes));
  return value;
}

/// How the gradient of a read is reduced (scoring::Reduction).
enum ReadKind { kUniform, kRow, kColumn, kDiagonal, kElement, kScatter };

#include "emit.cuh"

/// The modified score.
template <class At>
FOVEAL_DEVICE real score_forward(const Score& score, const At& at, const ScoreArgs& args) {
  return score_in_units(score, at, args) * score_unit(score, at, args);
}

/// d modified / d score.
template <class At>
FOVEAL_DEVICE real score_backward(const Score& score, const At& at, const ScoreArgs& args) {
  return slope_in_units(score, at, args) * slope_unit(score, at, args);
}

/// A sum in units; 0 stays 0 whatever the unit is.
FOVEAL_DEVICE real apply_unit(real sum, real unit) { return sum == real(0) ? real(0) : sum * unit; }

/// d modified / d read.
template <int r, class At>
FOVEAL_DEVICE real read_factor(const Score& score, const At& at, const ScoreArgs& args) {
  return read_factor_in_units<r>(score, at, args) * read_unit<r>(score, at, args);
}

template <class T>
constexpr bool kIsInteger = kSame<T, int> || kSame<T, short> || kSame<T, signed char> || kSame<T, unsigned char>;

constexpr int kWalkSlots = kWalkValues > 0 ? kWalkValues : 1, kDiagonalSlots = kDiagonalValues > 0 ? kDiagonalValues : 1;
constexpr int kPairSlots = kPairReads > 0 ? kPairReads : 1, kPairTileSlots = kPairTiles > 0 ? kPairTiles : 1;
constexpr int kTableSlots = kTables > 0 ? kTables : 1, kRowSlots = kRowValues > 0 ? kRowValues : 1;

/// A pair with what is known before its score. Integers that were read stand there as bits.
struct Pair : Position {
  real walk[kWalkSlots], diagonal[kDiagonalSlots], row[kRowSlots], loaded[kPairSlots], tiled[kPairTileSlots], tanh;
  u32 table[kTableSlots];
};

/// Of one row.
struct RowValues {
  real value[kRowSlots];
  template <int v = 0>
  FOVEAL_DEVICE void load(const Position& at, const ScoreArgs& args) {
    if constexpr (v < kRowValues) {
      value[v] = row_value<v>(at, args);
      load<v + 1>(at, args);
    }
  }
  FOVEAL_DEVICE void put_into(Pair& pair) const {
#pragma unroll
    for (int v = 0; v < kRowValues; ++v) pair.row[v] = value[v];
  }
};

struct PairValues {
  real value[kPairSlots];
  FOVEAL_DEVICE void put_into(Pair& pair) const {
#pragma unroll
    for (int v = 0; v < kPairReads; ++v) pair.loaded[v] = value[v];
  }
};
template <int v>
FOVEAL_DEVICE void load_pair_value(PairValues& pairs, const Position& at, const ScoreArgs& args) {
  using PairElement = typename PairElementOf<v>::type;
  const char* element = static_cast<const char*>(args.param[kPairParam[v]].data) + pair_origin<v>(at, args) + pair_step<v>(at, args);
  if constexpr (kIsInteger<PairElement>) {
    pairs.value[v] = __int_as_float(fv_load_integer<PairElement>(element, 0));
  } else {
    pairs.value[v] = fv_load<PairElement>(element, 0);
  }
}
template <int v = 0>
FOVEAL_DEVICE void load_pair_values(PairValues& pairs, const Position& at, const ScoreArgs& args) {
  if constexpr (v < kPairReads) {
    load_pair_value<v>(pairs, at, args);
    load_pair_values<v + 1>(pairs, at, args);
  }
}
/// Do values of a read stay from tile to tile? kKeys: of a tile; holds: its rows are queries, which stay, too.
template <bool holds, int kKeys, int v>
constexpr bool is_held() {
  return holds && kPairRepeats[v] && kPairRun[v] == 0 && kKeys % 64 == 0;
}
/// The largest part of a run, half of it or a quarter and so on, that tiles of so many keys begin with.
constexpr int common_block(int run, int keys) { return keys % run == 0 ? run : common_block(run / 2, keys); }
/// The register of a fragment that has a read's value for register i, too: the first of the thread and row whose key lies in the same run, or of the two rows
/// where these are keys; or the first of those that repeat.
template <bool transposed, bool holds, int kKeys, int v>
constexpr int register_of_read(int i) {
  constexpr int run = kPairRun[v] > 0 ? common_block(kPairRun[v], kKeys) : 0;
  if constexpr (is_held<holds, kKeys, v>()) return i % 32;
  if constexpr (transposed) return run >= 16 ? i & ~2 : i;
  if constexpr (run >= 8) return i / (run / 2) * (run / 2) + (i & 2);
  return i;
}
/// Loads what register i needs that no other has. at: its pair; held: values that stay, of the pair `at` in the first tile of all.
template <bool transposed, bool holds, int kKeys, bool held = false, int v = 0, int count>
FOVEAL_DEVICE void load_pair_values(PairValues (&pairs)[count], int i, const Position& at, const ScoreArgs& args) {
  if constexpr (v < kPairReads) {
    if constexpr (is_held<holds, kKeys, v>() == held) {
      if (register_of_read<transposed, holds, kKeys, v>(i) == i) load_pair_value<v>(pairs[i], at, args);
    }
    load_pair_values<transposed, holds, kKeys, held, v + 1>(pairs, i, at, args);
  }
}
/// The values of register i, where they were loaded so.
template <bool transposed, bool holds, int kKeys, int v = 0, int count>
FOVEAL_DEVICE void put_pair_values(Pair& pair, const PairValues (&pairs)[count], int i) {
  if constexpr (v < kPairReads) {
    pair.loaded[v] = pairs[register_of_read<transposed, holds, kKeys, v>(i)].value[v];
    put_pair_values<transposed, holds, kKeys, v + 1>(pair, pairs, i);
  }
}
template <bool holds, int kKeys, int v = 0>
constexpr bool any_held() {
  if constexpr (v < kPairReads) return is_held<holds, kKeys, v>() || any_held<holds, kKeys, v + 1>();
  return false;
}

}  // namespace foveal::device
