#pragma once
// Scores of well-known forms: sums of a multiple of the raw score and offsets, and caps of it by tanh.
#include <optional>
#include <vector>

#include "score/column_forms.h"
#include "score/product.h"

namespace foveal::scoring {

/// A score that is the raw score times a uniform gain, plus offsets that do not depend on it.
struct ScoreSum {
  struct Offset {
    ValueId value;
    bool negative = false;
    bool is_product = false;  ///< of several offsets, one that varies and is not known: its factors stand apart
    /// Its factors beside the uniform ones, if it is such a product: those that are the same for all pairs of a row, and the others.
    std::vector<ValueId> row{}, rest{};
    /// Of several offsets: the only one of `rest`, where it is the same for all pairs of a key.
    ValueId column = -1;

    /// Can a factor be taken out for each row?
    bool has_row() const { return !row.empty() && !rest.empty(); }
  };
  Product gain;
  std::vector<Offset> offsets{};  ///< those that fewer pairs differ in first
  int operations = 0;             ///< of reals, for each pair, that all offsets take

  /// Is the gain constant and at least 1, so that what it divides stays finite?
  bool gain_is_plain() const { return gain.scales() && gain.factors.empty() && gain.constant >= 1; }
};
/// A value as such a sum, with at most so many offsets.
std::optional<ScoreSum> sum_with_score(const Products& products, const base::IdVector<ColumnForm>& columns, ValueId id,
                                       std::size_t most_offsets);

/// The only tanh of the program, if its argument is the raw score times a uniform factor.
std::optional<ValueId> tanh_of_score(const Products& products);

}  // namespace foveal::scoring
