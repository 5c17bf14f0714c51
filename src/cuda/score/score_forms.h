#pragma once
// What kernels make of the forms that values of a score program have (score/product.h, score_sum.h, index_forms.h), given what they have
// computed already. Nothing here is text (score_writer.h prints it).
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/score/score_facts.h"
#include "score/column_forms.h"
#include "score/index_forms.h"
#include "score/product.h"
#include "score/score_sum.h"
#include "score/varies.h"

namespace foveal::cuda {

using problem::Problem;
using scoring::Instr;
using scoring::Interval;
using scoring::Linear;
using scoring::Op;
using scoring::Product;
using scoring::Program;
using scoring::ScoreSum;
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

/// The factor of a trained read: a product, whose rest may be a sum of two products that share no constant.
struct ReadFactor {
  Product product;
  std::optional<std::pair<Product, Product>> summands{};  ///< instead of product.rest
};

class ScoreForms : public scoring::IndexForms {
 public:
  ScoreForms(const Problem& problem, const Program& program, const Given& given = {});

  const Problem& problem() const { return problem_; }
  const Given& given() const { return given_; }

  // ---- values ----

  bool is_given(ValueId id) const { return products_.is_known(id); }
  /// Does a value decide something discrete (score/discrete.h)?
  bool decides(ValueId id) const { return products_.decides(id); }
  /// May factors and summands be reordered?
  bool regroups() const { return products_.regroups(); }
  bool is_double(ValueId id) const { return doubles_[id]; }
  /// Are the reals of an operation doubles?
  bool is_in_double(ValueId id) const;
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
  /// Do its offsets take so many instructions per pair that they must not wait for the PV product?
  bool is_long(const ScoreSum& sum) const { return problem_.pass == Pass::forward && sum.operations > 6; }
  std::optional<ValueId> tanh_of_score() const { return scoring::tanh_of_score(products_); }
  /// Is the result of the forward pass the given tanh times uniform factors?
  bool is_softcap(ValueId value) const { return is_tanh(product_of(value)); }
  bool is_multiple_of_tanh(const Product& product) const { return problem_.pass == Pass::forward && is_tanh(product); }

  /// Is a value affine in q and kv: a uniform factor times a sum of q, kv and uniform terms?
  bool is_affine(ValueId value) const;

  // ---- elements of reads: pair_tiles.cpp ----

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

  const Problem& problem_;
  const Given given_;
  const scoring::Products products_;
  const base::IdVector<scoring::ColumnForm> columns_;
  const base::IdVector<char> doubles_;
};

}  // namespace foveal::cuda
