#pragma once
// What forms the values of a score program have: products, sums with the score, sums of positions. Facts about a problem and the text of
// its kernels follow from them; nothing here is text (score_writer.h prints it).
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/score/score_facts.h"
#include "score/column_forms.h"
#include "score/interval.h"
#include "score/linear.h"
#include "score/product.h"
#include "score/varies.h"

namespace foveal::cuda {

using problem::Problem;
using scoring::Instr;
using scoring::Interval;
using scoring::Op;
using scoring::Product;
using scoring::Program;
using scoring::ValueId;
using scoring::Varies;

/// Values that a kernel has already when it evaluates the score of a pair: at.walk, at.diagonal, at.row, at.loaded, at.tiled, at.tanh.
struct Given {
  LineValues lines{};
  std::vector<ValueId> rows{};
  std::vector<ValueId> pair_reads{}, tiled{};
  std::vector<ReadTable> tables{};
  std::optional<ValueId> tanh{};
};

/// A score that is the raw score times a uniform gain, plus offsets that do not depend on it.
struct ScoreSum {
  struct Offset {
    ValueId value;
    bool negative = false;
    bool is_product = false;  ///< of several offsets, one that varies and is not given: its factors stand apart
    /// Its factors beside the uniform ones, if it is such a product: those that are the same for all pairs of a row, and the others.
    std::vector<ValueId> row{}, rest{};
    /// Of several offsets: the only one of `rest`, where it is the same for all pairs of a key.
    ValueId column = -1;

    /// Can a factor be taken out for each row?
    bool has_row() const { return !row.empty() && !rest.empty(); }
  };
  Product gain;
  bool is_long = false;  ///< its offsets take so many instructions per pair that they must not wait for the PV product
  /// It is constant apart from the scale, which kernels apply when they search maxima, and at least 1: what it divides stays finite.
  bool gain_is_plain = false;
  std::vector<Offset> offsets{};  ///< those that fewer pairs differ in first
};

/// The factor of a trained read: a product, whose rest may be a sum of two products that share no constant.
struct ReadFactor {
  Product product;
  std::optional<std::pair<Product, Product>> summands{};  ///< instead of product.rest
};

/// An integer as q * q_idx + kv * kv_idx + terms + constant.
struct PositionSum {
  std::int64_t q = 0, kv = 0, constant = 0;
  std::vector<std::pair<ValueId, std::int64_t>> terms{};
};

class ScoreForms {
 public:
  ScoreForms(const Problem& problem, const Program& program, const Given& given = {});

  const Problem& problem() const { return problem_; }
  const Program& program() const { return program_; }
  const Given& given() const { return given_; }
  const Interval& bounds(ValueId id) const { return bounds_[id]; }

  // ---- values ----

  bool is_given(ValueId id) const { return products_.is_known(id); }
  bool is_uniform(ValueId id) const { return products_.is_uniform(id); }
  /// Does a value decide something discrete (score/discrete.h)?
  bool decides(ValueId id) const { return products_.decides(id); }
  /// May factors and summands be reordered?
  bool regroups() const { return products_.regroups(); }
  bool is_double(ValueId id) const { return doubles_[id]; }
  /// Are the reals of an operation doubles?
  bool is_in_double(ValueId id) const;
  /// Does an integer need 64 bits?
  bool is_wide(ValueId id) const;
  /// An integer that varies over pairs and is small enough to be converted to a real by an addition.
  bool is_small_integer(ValueId id) const;
  /// What must be computed for these outputs: what is given ends the search.
  base::IdVector<char> needed_for(const std::vector<ValueId>& outputs) const;
  /// About how many instructions the real values take that these outputs need for each pair.
  int instructions_for(const std::vector<ValueId>& outputs) const;

  // ---- products: score_forms.cpp ----

  Product product_of(ValueId id) const { return products_.of(id); }
  bool is_score(const Product& product) const { return products_.is_score(product); }
  /// Does a product have a factor that is uniform over the pairs of a head? The raw score brings the scale.
  bool has_uniform_factor(const Product& product) const;
  /// The factors of a value that vary over the pairs of a head.
  std::vector<ValueId> varying_factors(ValueId id) const { return product_of(id).rest; }
  /// Is a value the raw score times a uniform factor?
  bool is_scaled_score(ValueId id) const { return is_score(product_of(id)); }

  /// A value as a product whose uniform factors are hoisted; none if it is used as it is.
  std::optional<Product> hoisted(ValueId id) const;
  /// The same where only a positive constant is hoisted, which does not move a row's maximum.
  std::optional<Product> hoisted_constant(ValueId id) const;
  /// For the slope of the score_mod: dk can absorb a factor only where it is the same for all query heads of the group.
  std::optional<Product> hoisted_slope(ValueId id) const;
  /// For the factor of a trained read. The constant of a second summand is applied after the sum over pairs.
  std::optional<ReadFactor> hoisted_factor(ValueId id) const;

  std::optional<ScoreSum> sum_with_score(ValueId id) const;

  /// The only tanh of the program, if its argument is the raw score times a uniform factor.
  std::optional<ValueId> tanh_of_score() const;
  /// Is the result of the forward pass the given tanh times uniform factors?
  bool is_softcap(ValueId value) const { return is_tanh(product_of(value)); }
  bool is_multiple_of_tanh(const Product& product) const { return problem_.pass == Pass::forward && is_tanh(product); }

  // ---- sums of positions: position_forms.cpp ----

  /// Nothing where 32 bits may overflow.
  std::optional<PositionSum> sum_of(ValueId id) const;
  /// An integer sum with q or kv in it: pairs of a thread share an origin, from which each is a compile-time step away.
  std::optional<PositionSum> sum_of_places(ValueId id) const;
  /// An integer sum of row values and column values, each summed on its own, so that a pair costs one addition.
  std::optional<PositionSum> sum_of_lines(ValueId id) const;
  /// Of a column part that sums kv_idx and values derived from it by `//` and `%` of multiples of 8: block sizes such that for key tiles
  /// that are multiples or divisors of them it is its value at the tile's first key plus that at the step from there.
  std::optional<std::vector<std::int64_t>> column_blocks(ValueId id) const;
  /// Is the number of a read's element a sum of a row's and a column's part?
  bool is_element_of_lines(const Instr& read) const;
  /// Is a value affine in q and kv: a uniform factor times a sum of q, kv and uniform terms?
  bool is_affine(ValueId value) const;
  /// Is an index a multiple of this position (q_idx or kv_idx) plus what is the same for all pairs, perhaps plus a multiple of the other?
  bool steps_with(ValueId index, Op position) const;
  /// Is an index of a read certain to be in bounds?
  bool is_inside(const Instr& read, std::size_t dimension) const;
  /// How many elements of a dimension lie before the next one of the dimension to its left. padded: as it stands in a table
  /// (table_row_entries).
  std::int64_t entries_of(const Instr& read, std::size_t dimension, bool padded) const;

  struct TileUse {
    bool transposed = false;  ///< by a kernel whose rows are keys
    bool stairs = false;      ///< PairTile::stairs is allowed
  };
  /// A read as tiles, if TMA can load it so.
  std::optional<PairTile> tile_of(ValueId id, TileUse use) const;

 private:
  bool is_tanh(const Product& product) const { return given_.tanh && product.rest == std::vector{*given_.tanh} && product.scales(); }
  /// Real operations per pair that a value takes.
  int operations_of_pairs(ValueId id) const;
  ScoreSum::Offset offset(ValueId value, bool negative, bool alone) const;
  /// The block sizes of a value derived from kv_idx by `//` and `%`; false for others. divided: the divisor so far.
  bool append_blocks(ValueId id, std::int64_t& divided, std::vector<std::int64_t>& blocks) const;

  const Problem& problem_;
  const Program& program_;
  const Given given_;
  const scoring::Products products_;
  const base::IdVector<Interval> bounds_;
  const base::IdVector<scoring::Linear> linear_;
  const base::IdVector<scoring::ColumnForm> columns_;
  const base::IdVector<char> doubles_;
};

}  // namespace foveal::cuda
