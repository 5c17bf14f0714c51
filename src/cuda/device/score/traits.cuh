#pragma once
// What emitted text says about the reads of a score and other values, a row each of the arrays that score/score.cuh lists. Plain C++: the
// host fills and prints the rows (cuda/score/emit_*.cpp), kernels read them. `fields` names every field, for the printer.

namespace foveal::device {

/// How the gradient of a trained read is reduced: over what its element varies (scoring::Varies); of pairs, whether one alone has it.
enum ReadKind { kUniform, kRow, kColumn, kDiagonal, kElement, kScatter };

/// A trained read.
struct ReadTraits {
  ReadKind kind;
  int param, rank;                        ///< its parameter
  int row_dim, column_dim;                ///< of a kElement read: the dimensions of q and kv
  bool stores;                            ///< each element is written once, as a ReadGradient
  bool factor_is_one, factor_is_finite;   ///< for all pairs
  bool factor_is_tame;                    ///< finite where values along lines are tame
  bool follows_from_dk;                   ///< the factor is the raw score, and the sum of all terms is that of k . dk
  bool has_terms;                         ///< with collects_terms() the kernel sums terms of its pairs
  bool is_early;                          ///< these are known only together with the probability, and stay in registers
  bool is_staged;                         ///< other warps sum them along lines of a tile (tile/collect_reads.cuh)
  int bin_copies, bin_entries, bin_dims;  ///< bins in shared memory (tile/read_bins.cuh); dimensions as a bitmask
  bool bin_is_window;                     ///< bins hold some of the elements at a time

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("kind", self.kind), fn("param", self.param), fn("rank", self.rank), fn("row_dim", self.row_dim), fn("column_dim", self.column_dim);
    fn("stores", self.stores), fn("factor_is_one", self.factor_is_one);
    fn("factor_is_finite", self.factor_is_finite), fn("factor_is_tame", self.factor_is_tame);
    fn("follows_from_dk", self.follows_from_dk), fn("has_terms", self.has_terms), fn("is_early", self.is_early);
    fn("is_staged", self.is_staged), fn("bin_copies", self.bin_copies), fn("bin_entries", self.bin_entries);
    fn("bin_dims", self.bin_dims), fn("bin_is_window", self.bin_is_window);
  }
};

/// A trained read that kernels/rows_sm90.cuh sums as a table for each query. read: its number; dims: a bitmask; run, repeats, distinct,
/// any: how its elements vary along the keys; stored: as a RowGradientOf, not added.
struct RowReadTraits {
  int read, entries, dims, run;
  bool repeats, distinct, any, stored;

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("read", self.read), fn("entries", self.entries), fn("dims", self.dims), fn("run", self.run), fn("repeats", self.repeats);
    fn("distinct", self.distinct), fn("any", self.any), fn("stored", self.stored);
  }
};

/// A read of one element for each pair, prefetched. run: it is constant over blocks of this many keys, 0: it is not; repeats: every 64
/// keys.
struct PairReadTraits {
  int param, run;
  bool repeats;

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("param", self.param), fn("run", self.run), fn("repeats", self.repeats);
  }
};

/// The same by TMA (tile/pair_tiles.cuh). keys: that differ, 0: all.
struct PairTileTraits {
  int keys;
  bool wraps, stairs, same;

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("keys", self.keys), fn("wraps", self.wraps), fn("stairs", self.stairs), fn("same", self.same);
  }
};

/// A parameter's elements for one batch entry and head, in shared memory (tile/read_tables.cuh).
struct TableTraits {
  int param, rank;
  int entries, copies;
  int row, padded_row;  ///< entries of a row, without and with padding
  int dims;             ///< those in which elements differ, a bitmask
  bool is_scaled;       ///< by table_unit

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("param", self.param), fn("rank", self.rank), fn("entries", self.entries), fn("copies", self.copies), fn("row", self.row);
    fn("padded_row", self.padded_row), fn("dims", self.dims), fn("is_scaled", self.is_scaled);
  }
};

/// An offset of a score that is a sum. walk: the line value that is its factor along keys (kOffsetsAreColumns); is_scaled: it has no
/// factor, as the table that it reads has it.
struct OffsetTraits {
  int walk;
  bool has_row, is_scaled;

  template <class Self, class Fn>
  static void fields(Self& self, Fn fn) {
    fn("walk", self.walk), fn("has_row", self.has_row), fn("is_scaled", self.is_scaled);
  }
};

}  // namespace foveal::device
