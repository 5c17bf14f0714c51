#pragma once
// Where expressions are lowered, simplified and differentiated: values in SSA form, each made once (hash-consed), each simplified while it
// is made. Equal ids mean equal values; a value that two ways of writing have in common is computed once.
//
// The simplifications are exact: for reals only those that IEEE arithmetic allows for finite values (up to the sign of zero), for integers
// everything that holds for integers; pow(x, 2) is x * x and pow(x, -1) is 1 / x by definition. simplify.cpp holds them; this file holds
// the storage and the canonical order.
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "score/linear.h"
#include "score/program.h"

namespace foveal::scoring {

/// The largest program that is accepted: far above any score that is worth running.
constexpr std::size_t max_values = 1u << 18;

class Graph {
 public:
  /// `params` fixes the first parameter positions. A sealed graph refuses reads of any other parameter.
  explicit Graph(const std::vector<Param>& params = {}, bool sealed = false);
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  ValueId real(double value);
  ValueId integer(std::int64_t value);
  ValueId boolean(bool value);
  ValueId symbol(Op op);
  ValueId read(const Param::Info& param, std::vector<ValueId> index);
  /// The simplified value of op over operands that have the op's types.
  ValueId make(Op op, ValueId a, ValueId b = -1, ValueId c = -1);

  /// Lowers an expression (of any depth, shared parts once).
  ValueId lower(const Expr& expr);
  ValueId to_real(ValueId value) { return type(value) == Type::real ? value : make(Op::to_real, value); }

  const Instr& operator[](ValueId id) const { return code_[static_cast<std::size_t>(id)]; }
  Type type(ValueId id) const { return (*this)[id].type; }
  std::uint8_t depends(ValueId id) const { return depends_[static_cast<std::size_t>(id)]; }
  std::size_t size() const { return code_.size(); }
  const std::vector<Param::Info>& params() const { return params_; }

  bool is_const(ValueId id) const;
  std::optional<double> const_value(ValueId id) const;  ///< of any type
  /// An integer as a sum; a value that is no sum is its own atom.
  Linear linear(ValueId id) const;

  /// Only what the outputs need, renumbered. stop_gradient has done its work by then: its operand stands in its place.
  Program program(const std::vector<ValueId>& outputs) const;
  Program program(const std::vector<ValueId>& outputs, std::vector<ValueId>& new_id) const;  ///< new_id: of each value, -1 when dropped

  /// A total order of values by their structure alone: what depends on the score first, then deeper ones first. Constants last.
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
  std::int32_t param_position(const Param::Info& param);
  Type result_type(Op op, ValueId a, ValueId b) const;

  // simplify.cpp
  std::optional<ValueId> fold(Op op, ValueId a, ValueId b, ValueId c);
  ValueId from_linear(const Linear& sum);
  ValueId make_integer(Op op, ValueId a, ValueId b);
  ValueId make_real(Op op, ValueId a, ValueId b);
  ValueId make_unary(Op op, ValueId a);
  ValueId make_select(ValueId condition, ValueId if_true, ValueId if_false);
  ValueId make_not(ValueId a);
  ValueId make_junction(Op op, ValueId a, ValueId b);
  ValueId make_xor(ValueId a, ValueId b);
  ValueId make_bits(Op op, ValueId a, ValueId b);
  ValueId make_comparison(Op op, ValueId a, ValueId b);
  ValueId make_pow(ValueId x, ValueId exponent);
  ValueId compare_to_zero(Op op, Linear difference);
  std::optional<Linear> difference(ValueId comparison) const;
  ValueId from_truth_table(ValueId flag, bool if_false, bool if_true);
  bool is(ValueId id, Op op) const { return (*this)[id].op == op; }
  bool is_const(ValueId id, double value) const;
  void sort_pair(ValueId& a, ValueId& b) const;

  std::vector<Instr> code_;
  std::vector<std::uint8_t> depends_;
  std::vector<std::int32_t> depth_;
  std::unordered_map<ValueId, Linear> linear_;  ///< of the sums that are not their own atom
  std::unordered_set<ValueId, Hash, Equal> interned_;
  std::vector<Param::Info> params_;
  std::unordered_map<std::string, std::int32_t> param_by_name_;
  bool sealed_;
};

}  // namespace foveal::scoring
