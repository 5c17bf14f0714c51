#pragma once
// The hash-consed SSA graph in which expressions are lowered, simplified and differentiated. Every value is simplified when it is made, and
// equal values have equal ids, so common subexpressions are computed once.
//
// Simplifications are exact. For reals: identities of IEEE arithmetic on finite values, up to the sign of zero; pow(x, 2) is x * x and
// pow(x, -1) is 1 / x by definition. For integers: all of integer arithmetic; no comparison, quotient or remainder gets an operand that
// leaves 64 bits where those that were written do not. graph.cpp holds storage and canonical order, simplify*.cpp the rules.
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/id_vector.h"
#include "score/interval.h"
#include "score/linear.h"
#include "score/program.h"

namespace foveal::scoring {

/// Larger programs are refused.
constexpr std::size_t max_values = 1u << 18;

/// Limits of normal forms: longer sums, and larger numbers, stay as they are written.
constexpr std::size_t max_terms = 16;
constexpr std::int64_t max_coefficient = std::numeric_limits<std::int32_t>::max();
inline bool fits(const Linear& sum) { return is_within(sum, max_terms, max_coefficient); }
/// Sums of at most this do not overflow, even after one more step.
constexpr double max_reach = 0x1p62;

class Graph {
 public:
  /// `params` get the first parameter positions. A sealed graph refuses reads of any other parameter.
  explicit Graph(const std::vector<Param>& params = {}, bool sealed = false);
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  ValueId real(double value);
  ValueId integer(std::int64_t value);
  ValueId boolean(bool value);
  ValueId symbol(Op op);
  ValueId read(const Param::Info& param, std::vector<ValueId> index);
  /// The simplified value of op; operands must have the op's operand types.
  ValueId make(Op op, ValueId a, ValueId b = -1, ValueId c = -1);

  /// Lowers an expression, iteratively (depth is unbounded) and shared nodes once.
  ValueId lower(const Expr& expr);
  ValueId to_real(ValueId value) { return type(value) == Type::real ? value : make(Op::to_real, value); }

  const Instr& operator[](ValueId id) const { return code_[id]; }
  Type type(ValueId id) const { return code_[id].type; }
  std::uint8_t depends(ValueId id) const { return depends_[id]; }
  /// Whether a real is a sum or product that some branch of a `where` makes zero.
  bool may_vanish(ValueId id) const { return may_vanish_[id]; }
  ValueId size() const { return code_.size(); }
  const std::vector<Param::Info>& params() const { return params_; }

  bool is_const(ValueId id) const;
  std::optional<double> const_value(ValueId id) const;  ///< of any type
  /// The linear form of an integer; a value that is not a sum is its own atom.
  Linear linear(ValueId id) const;

  /// The values that the outputs need, renumbered, and without stop_gradient.
  Program program(const std::vector<ValueId>& outputs) const;
  Program program(const std::vector<ValueId>& outputs, base::IdVector<ValueId>& new_id) const;  ///< new_id: -1 for dropped values

  /// A total order by structure alone: values that depend on the score first, then deeper ones first, constants last.
  bool before(ValueId a, ValueId b) const;

 private:
  struct Hash {
    const Graph* graph;
    std::size_t operator()(ValueId id) const;
  };
  struct Equal {
    const Graph* graph;
    bool operator()(ValueId a, ValueId b) const;
  };

  ValueId intern(Instr instr);
  ValueId intern(Op op, ValueId a, ValueId b = -1, ValueId c = -1);
  int compare(ValueId a, ValueId b) const;
  int compare_heads(ValueId a, ValueId b) const;
  std::int32_t param_position(const Param::Info& param);
  Type result_type(Op op, ValueId a, ValueId b) const;
  Interval bounds_of(const Instr& instr) const;
  bool vanishes(const Instr& instr) const;
  /// A bound on every partial sum.
  double reach(const Linear& sum) const;

  // simplify.cpp
  std::optional<ValueId> fold(Op op, ValueId a, ValueId b, ValueId c);
  ValueId make_real(Op op, ValueId a, ValueId b);
  ValueId make_unary(Op op, ValueId a);
  ValueId make_select(ValueId condition, ValueId if_true, ValueId if_false);
  ValueId make_pow(ValueId x, ValueId exponent);
  // simplify_integers.cpp
  ValueId from_linear(const Linear& sum);
  const Linear::Term& leading_term(const Linear& sum) const;
  ValueId make_integer(Op op, ValueId a, ValueId b);
  ValueId make_quotient(Op op, ValueId a, ValueId b);
  ValueId make_bits(Op op, ValueId a, ValueId b);
  ValueId make_integer_unary(Op op, ValueId a);
  // simplify_booleans.cpp
  ValueId make_not(ValueId a);
  ValueId make_junction(Op op, ValueId a, ValueId b);
  ValueId make_xor(ValueId a, ValueId b);
  ValueId make_comparison(Op op, ValueId a, ValueId b);
  ValueId make_real_comparison(Op op, ValueId a, ValueId b);
  std::optional<ValueId> compare_to_zero(Op op, Linear difference);
  std::optional<ValueId> compare_abs(const Linear& difference);
  std::optional<ValueId> compare_sides(Op op, const Linear& difference);
  std::optional<Linear> difference(ValueId comparison) const;
  ValueId from_truth_table(ValueId flag, bool if_false, bool if_true);

  bool is(ValueId id, Op op) const { return code_[id].op == op; }
  bool is_const(ValueId id, double value) const { return const_value(id) == value; }
  ValueId operand(ValueId id) const { return code_[id].arg[0]; }
  void sort_pair(ValueId& a, ValueId& b) const;

  base::IdVector<Instr> code_;
  base::IdVector<std::uint8_t> depends_;
  base::IdVector<std::int32_t> depth_;
  base::IdVector<std::uint8_t> is_long_;  ///< an integer made of elements or of reals, which a double may have to round
  base::IdVector<Interval> bounds_;       ///< of integers, for all data
  base::IdVector<char> may_vanish_;
  std::unordered_map<ValueId, Linear> linear_;  ///< of values that are not their own atom
  std::unordered_set<ValueId, Hash, Equal> interned_;
  mutable std::unordered_map<std::uint64_t, int> compared_;  ///< pairs whose order is far below them
  std::vector<Param::Info> params_;
  std::unordered_map<std::string, std::int32_t> param_by_name_;
  bool sealed_;
};

}  // namespace foveal::scoring
