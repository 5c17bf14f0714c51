#pragma once
// Symbolic differentiation in forward mode, one variable at a time; the graph shares common parts of several derivatives. The derivative of
// `where` selects between derivatives and never multiplies by a mask, so the branch not taken cannot contribute a NaN.
#include <span>
#include <vector>

#include "score/graph.h"
#include "score/op_table.h"

namespace foveal::scoring {

/// Chains of operations other than sums, each with a read of its own, take the square of their length: longer ones are refused.
constexpr std::int64_t max_steps = 16 * static_cast<std::int64_t>(max_values);

/// The derivatives of one value by leaves of its graph (the score or reads). Each visits only what depends on its variable, and passes over
/// sums at once: a score that adds up thousands of trained reads takes time of its own size, and not of its square.
class Derivatives {
 public:
  Derivatives(Graph& graph, ValueId value);
  /// d value / d variable; zero_tangent if value does not depend on it.
  ValueId by(ValueId variable);
  std::int64_t steps() const { return steps_; }  ///< applications of the chain rule by all calls so far

 private:
  /// Users of `id` whose tangents follow from its own.
  std::span<const ValueId> users(ValueId id) const;
  /// The last value before `limit` whose tangent is that of `id` because all between them are sums.
  ValueId last_equal(ValueId id, ValueId limit) const;
  ValueId tangent_of(ValueId id);

  Graph& graph_;
  ValueId value_;
  base::IdVector<std::int32_t> first_user_;  ///< in users_; one more than there are values
  std::vector<ValueId> users_;
  base::IdVector<ValueId> tangents_;            ///< zero_tangent between calls
  base::IdVector<std::int32_t> chain_, place_;  ///< of a value, -1 for none, and its place there
  std::vector<std::vector<ValueId>> chains_;    ///< each value is the first operand, and nothing else, of the sum after it
  std::int64_t steps_ = 0;
};

}  // namespace foveal::scoring
