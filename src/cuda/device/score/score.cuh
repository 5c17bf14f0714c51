#pragma once
// The score and mask of this problem: what score_emit writes into emit.cuh, and the types that it is called with. `score` is the raw score
// q . k with its scale; `real` is float, or double for f64 inputs. "Constant over a head": the same for all pairs of a head, independent of
// the raw score.
//
//   constexpr bool kHasScore, kHasMask, kHasSink;
//   bool mask_keep(at, args)
//   real sink_logit(head, args)
//   real score_in_units(score, at, args)   the modified score / score_unit
//   real score_unit(score, at, args)       constant over a head, to be folded into an exponent; in forward passes a positive constant,
//                                          apart from the scale
//   real slope_in_units(score, at, args)   d modified / d score / slope_unit; kSlopeOfScore: it depends on the score
//   real slope_unit(score, at, args)       constant over a head and over heads that share keys, to be folded into dq and dk
//
// What these arrays say of each row is in score/traits.cuh: kRead[r], r < kReads (trained reads); kRowRead[i], i < kRowReads; kPairRead[v],
// v < kPairReads; kPairTile[v], v < kPairTiles; kTable[t], t < kTables; kOffset[o], o < kOffsets.
//
// For each trained read r:
//   real read_factor_in_units<r>(score, at, args)   d modified / d read / read_unit<r>
//   real read_unit<r>(score, at, args)              constant over a head, to be folded into the sum over pairs
//   void read_index<r>(score, at, args, index)      the indices, clamped into the parameter
//   int read_bin<r>(score, at, args)                its bin in shared memory (tile/read_bins.cuh): the index among the elements that differ
//                                                   in the dimensions bin_dims
//   ReadGradient<r>                                 the type of the gradient's elements, where each is written once
// kSinkParam: index of the sink if its gradient is wanted, else -1.
//
// Values that a kernel evaluates or loads apart from pairs, and passes in as members of `at`. For kernels that do not, there are none:
//   walk[v] = walk_value<v>(at, args), v < kWalkValues               constant over one position along the walk (tile/line_values.cuh)
//   diagonal[v] = diagonal_value<v>(at, args), v < kDiagonalValues   constant over a diagonal
//   row[v] = row_value<v>(at, args), v < kRowValues                  constant over a row
//   loaded[v], v < kPairReads    one element for each pair, prefetched: a PairElementOf<v>, at byte offset pair_origin<v>(at, args) (the
//                                same for all pairs of a thread) + pair_step<v>(at, args) of its parameter
//   tiled[v], v < kPairTiles     the same by TMA, in tiles of PairTileElementOf<v> (tile/pair_tiles.cuh); pair_tile_place<v>(at, args,
//                                place): coordinates in the tensor map, {column, row, ...}
//   table[t], t < kTables        shared-memory address of a parameter's elements for one batch entry and head (tile/read_tables.cuh), each
//                                a TableElementOf<t>; table_index<t>(at, args, index): the dimensions in which they do not differ
//   tanh, if kTanhAhead          tanh(raw score * tanh_factor) * tanh_times, both real f(score, at, args)
//
// Forms of scores:
//   kCappedScore         the modified score / score_unit is at.tanh
//   kSumScore            the modified score is raw score * score_gain + the sum over o < kOffsets (1 in backward passes) of
//                        offset_in_units<o> * offset_row<o> * offset_unit<o>, all real f(score, at, args): the first is independent of the
//                        score, the second constant over a row (1 unless kOffset[o].has_row), score_gain and the third constant over a head
//   kOffsetsInScores     it is (raw score + the sum) * score_unit instead: offset_unit is divided by that, score_in_units is the raw score
//   kOffsetsFirst        accumulators start as this sum, and q . k is added. A table may then be scaled already (its factor: real
//                        table_unit<t>(score, args)), and the offset that reads it has no factor
//   kPairsInPart         0, or, where evaluating it takes many instructions, how many pairs of a thread one turn of a rolled loop evaluates
//   kOffsetsAreColumns   each offset is at.walk[kOffset[o].walk] * (offset_row * offset_unit), added by tensor cores
//                        (tile/extra_columns.cuh)
//
// For tables by query (kernels/rows_sm90.cuh):
//   int row_bin<i>(at, args)   index among the elements of a query, those that differ in the dimensions kRowRead[i].dims
//   RowGradientOf<i>           the type of the gradient's elements, where they are stored
#include "score/functions.cuh"
#include "score/traits.cuh"

namespace foveal::device {

/// A pair: global positions and sequence lengths. A kernel that knows q and kv relative to a base that a thread's pairs share gives the
/// distances as steps: constants once loops are unrolled. key_block: kv_step < key_block, and kv - kv_step is a multiple of it plus a rest
/// that stays below 8 when kv_step % 8 is added; 0: nothing is known.
struct Position {
  int batch, head, q, kv, seqlen_q, seqlen_kv;
  int q_step = 0, kv_step = 0;
  int key_block = 0;
};

/// A product q . k and its scale, kept apart so that emitted text can fold the scale into its own factors; or an already scaled score.
struct Score {
  real raw, scale;
  FOVEAL_DEVICE Score(real scaled) : raw(scaled), scale(1) {}
  FOVEAL_DEVICE Score(real raw, real scale) : raw(raw), scale(scale) {}
  FOVEAL_DEVICE operator real() const { return raw * scale; }
};

/// Loads a word of a table in shared memory, at byte offset `bytes`. No memory clobber: tables do not change while pairs are evaluated.
FOVEAL_DEVICE float load_table(u32 table, int bytes) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(table + bytes));
  return value;
}

#include "emit.cuh"

constexpr bool kInParts = kPairsInPart > 0;

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

/// Applies a unit to a sum in units; 0 stays 0 whatever the unit is.
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

/// A pair with the values known before its score. Integer reads are stored as bits.
struct Pair : Position {
  real walk[kWalkSlots], diagonal[kDiagonalSlots], row[kRowSlots], loaded[kPairSlots], tiled[kPairTileSlots], tanh;
  u32 table[kTableSlots];
};

/// Values that are constant for a row.
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
  const char* element = static_cast<const char*>(args.param[kPairRead[v].param].data) + pair_origin<v>(at, args) + pair_step<v>(at, args);
  if constexpr (kIsInteger<PairElement>) {
    pairs.value[v] = __int_as_float(fv_load_exact<PairElement>(element, 0));
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
/// Can values of a read be held from tile to tile? kKeys: of a tile; holds: rows are queries, which do not change.
template <bool holds, int kKeys, int v>
constexpr bool is_held() {
  return holds && kPairRead[v].repeats && kPairRead[v].run == 0 && kKeys % 64 == 0;
}
/// The largest power-of-two fraction of a run that divides a tile of this many keys.
constexpr int common_block(int run, int keys) { return keys % run == 0 ? run : common_block(run / 2, keys); }
/// The register whose value register i shares: the first one of the thread and row with its key in the same run (or of both rows, if rows
/// are keys), or the first that repeats.
template <bool transposed, bool holds, int kKeys, int v>
constexpr int register_of_read(int i) {
  constexpr int run = kPairRead[v].run > 0 ? common_block(kPairRead[v].run, kKeys) : 0;
  if constexpr (is_held<holds, kKeys, v>()) return i % 32;
  if constexpr (transposed) return run >= 16 ? i & ~2 : i;
  if constexpr (run >= 8) return i / (run / 2) * (run / 2) + (i & 2);
  return i;
}
/// Loads the value of register i unless it shares another's. at: its pair; held: load the values that are held, for a pair of the first
/// tile.
template <bool transposed, bool holds, int kKeys, bool held = false, int v = 0, int count>
FOVEAL_DEVICE void load_pair_values(PairValues (&pairs)[count], int i, const Position& at, const ScoreArgs& args) {
  if constexpr (v < kPairReads) {
    if constexpr (is_held<holds, kKeys, v>() == held) {
      if (register_of_read<transposed, holds, kKeys, v>(i) == i) load_pair_value<v>(pairs[i], at, args);
    }
    load_pair_values<transposed, holds, kKeys, held, v + 1>(pairs, i, at, args);
  }
}
/// Gets the values of register i, as loaded by the above.
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
