#pragma once
// What is known about each operation: one OpRow in ops.cpp for each row of FOVEAL_SCORE_OPS, in the same order.
//
// `value` and the bounds carry integers in doubles (exact up to 2^53), booleans as 0 and 1.
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "score/interval.h"
#include "score/ops.h"
#include "score/program.h"

namespace foveal::scoring {

class Graph;

/// The derivative of a value that does not depend on the variable: structurally zero, so that nothing is computed for it.
constexpr ValueId zero_tangent = -1;

/// One step of the chain rule: `self = op(arg...)`, and what the arguments' derivatives are.
struct TangentStep {
  Graph& graph;
  ValueId self;
  std::array<ValueId, 3> arg;
  std::array<ValueId, 3> tangent;  ///< zero_tangent for arguments that do not depend on the variable

  /// factor * tangent. A tangent that a `where` sets to zero stays exactly zero even when the factor is infinite there.
  ValueId scaled(ValueId factor, ValueId value) const;
  ValueId sum(ValueId a, ValueId b) const;
  ValueId difference(ValueId a, ValueId b) const;
  ValueId choose(ValueId condition, ValueId if_true, ValueId if_false) const;
};

struct OpRow {
  Op op;
  std::string_view name;       ///< `floor_div`
  std::string_view text;       ///< function name or operator in the canonical form
  int arity;                   ///< operands; a read's indices do not count
  std::string_view signature;  ///< see ops.h
  /// The value; `type` is the result's. Absent for constants, symbols and reads.
  double (*value)(Type type, double a, double b, double c);
  /// The same of integers and booleans, in 64 bits that wrap. Absent where no operand can be one, and for `where` and conversions.
  std::int64_t (*of_integers)(std::int64_t a, std::int64_t b);
  /// The derivative of self by the chain rule. Absent where it is zero everywhere.
  ValueId (*derivative)(const TangentStep& step);
  /// Bounds of the value from bounds of the operands. Absent for constants, symbols and reads.
  Interval (*interval)(Type type, const Interval& a, const Interval& b, const Interval& c);
  /// CUDA text with $0, $1, $2 for the operands, for real operands and for integer (or boolean) ones; "" where there is no such form.
  /// `real` is float or double, integers are int. The fv_ functions are overloaded for float, double and int by the device code.
  std::string_view cuda_real;
  std::string_view cuda_integer;
};

/// A real towards zero as an integer; what 64 bits do not hold is moved to the nearest that they do, NaN becomes 0.
std::int64_t truncated(double x);

/// All rows, in the order of FOVEAL_SCORE_OPS.
std::span<const OpRow> op_rows();
inline const OpRow& row(Op op) { return op_rows()[static_cast<std::size_t>(op)]; }

}  // namespace foveal::scoring
