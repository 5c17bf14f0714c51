#pragma once
// What the compiler knows about each operation: an OpRow in ops.cpp for each row of FOVEAL_SCORE_OPS, in the same order.
//
// `value` and intervals hold integers as doubles (exact up to 2^53) and booleans as 0 and 1.
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "score/interval.h"
#include "score/ops.h"
#include "score/program.h"

namespace foveal::scoring {

class Graph;

/// The tangent of a value that does not depend on the variable: structurally zero, no code is generated for it.
constexpr ValueId zero_tangent = -1;

/// One application of the chain rule to self = op(arg...).
struct TangentStep {
  Graph& graph;
  ValueId self;
  std::array<ValueId, 3> arg;
  std::array<ValueId, 3> tangent;  ///< of the arguments

  /// factor * value, but exactly zero where branches of `where` make the value zero, even if the factor is infinite there. A `where` with a
  /// zero branch takes the factor into the other one.
  ValueId scaled(ValueId factor, ValueId value) const;
  ValueId sum(ValueId a, ValueId b) const;
  ValueId difference(ValueId a, ValueId b) const;
  ValueId choose(ValueId condition, ValueId if_true, ValueId if_false) const;
};

/// An operation on a GPU.
struct GpuCost {
  int instructions = 1;      ///< about
  bool special = false;      ///< on the special-function unit (MUFU)
  bool approximate = false;  ///< the text calls a function of which `<false>` is the exact form
};

struct OpRow {
  Op op;
  std::string_view name;       ///< `floor_div`
  std::string_view text;       ///< function name or operator in canonical text
  int arity;                   ///< without the indices of a read
  std::string_view signature;  ///< see ops.h
  /// The value; `type` is the result type. Null for constants, symbols and reads.
  double (*value)(Type type, double a, double b, double c);
  /// The value of integer and boolean operands in wrapping 64-bit arithmetic. Null for real-only operations, `where` and conversions.
  std::int64_t (*of_integers)(std::int64_t a, std::int64_t b);
  /// The tangent of self by the chain rule. Null: zero everywhere.
  ValueId (*derivative)(const TangentStep& step);
  /// Bounds of the value from those of the operands. Null for constants, symbols and reads.
  Interval (*interval)(Type type, const Interval& a, const Interval& b, const Interval& c);
  /// CUDA text with $0, $1, $2 for real operands, and for integer or boolean ones; "" if there is no such form. `real` is float or double,
  /// integers are int; device code overloads the fv_ functions for float, double and int.
  std::string_view cuda_real;
  std::string_view cuda_integer;
  GpuCost gpu;
};

/// Whether an operation on integers may leave 64 bits; and whether it does with these operands.
bool may_overflow(Op op);
bool overflows(Op op, std::int64_t a, std::int64_t b);

/// Truncates towards zero and saturates to 64 bits; NaN becomes 0.
std::int64_t truncated(double x);

/// All rows, in the order of FOVEAL_SCORE_OPS.
std::span<const OpRow> op_rows();
inline const OpRow& row(Op op) { return op_rows()[static_cast<std::size_t>(op)]; }

}  // namespace foveal::scoring
