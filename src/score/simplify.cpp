// Simplification rules: constants, reals, conversions and `where`. Integers are in simplify_integers.cpp, booleans in
// simplify_booleans.cpp.
#include <cmath>

#include "base/check.h"
#include "score/graph.h"
#include "score/op_table.h"

namespace foveal::scoring {
namespace {

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::abs(std::frexp(value, &exponent)) == 0.5 && std::abs(exponent) < 100;
}

bool is_small_integer(double value) { return value == std::trunc(value) && std::abs(value) <= 1 << 20; }

}  // namespace

ValueId Graph::make(Op op, ValueId a, ValueId b, ValueId c) {
  if (std::optional<ValueId> folded = fold(op, a, b, c)) return *folded;
  switch (op) {
    case Op::add:
    case Op::sub:
    case Op::mul:
    case Op::floor_div:
    case Op::mod:
    case Op::min:
    case Op::max:
      return type(a) == Type::integer ? make_integer(op, a, b) : make_real(op, a, b);
    case Op::div:
      return make_real(op, a, b);
    case Op::pow:
      return make_pow(a, b);
    case Op::eq:
    case Op::ne:
    case Op::lt:
    case Op::le:
      return make_comparison(op, a, b);
    case Op::logical_and:
    case Op::logical_or:
      return make_junction(op, a, b);
    case Op::logical_xor:
      return make_xor(a, b);
    case Op::bit_and:
    case Op::bit_or:
    case Op::bit_xor:
    case Op::shift_left:
    case Op::shift_right:
      return make_bits(op, a, b);
    case Op::logical_not:
      return make_not(a);
    case Op::select:
      return make_select(a, b, c);
    default:
      return type(a) == Type::integer && (op == Op::neg || op == Op::abs || op == Op::to_int32) ? make_integer_unary(op, a)
                                                                                                : make_unary(op, a);
  }
}

std::optional<ValueId> Graph::fold(Op op, ValueId a, ValueId b, ValueId c) {
  for (ValueId arg : {a, b, c})
    if (arg >= 0 && !is_const(arg)) return std::nullopt;
  const Type result = result_type(op, a, b);
  const double value = row(op).value(result, *const_value(a), b < 0 ? 0 : *const_value(b), c < 0 ? 0 : *const_value(c));
  if (std::isnan(value)) return std::nullopt;
  if (type(a) != Type::real && row(op).of_integers) {  // exact beyond 2^53
    const std::int64_t x = (*this)[a].integer, y = b < 0 ? 0 : (*this)[b].integer;
    FOVEAL_CHECK(!overflows(op, x, y), "operator ", row(op).text, ": ", value, " does not fit 64 bits");
    const std::int64_t exact = row(op).of_integers(x, y);
    return result == Type::integer ? integer(exact) : boolean(exact != 0);
  }
  if (op == Op::select && result != Type::real) return (*this)[a].integer != 0 ? b : c;
  if (result == Type::real) return real(value);
  if (result == Type::boolean) return boolean(value != 0);
  return integer(truncated(value));
}

ValueId Graph::make_real(Op op, ValueId a, ValueId b) {
  const auto integer_of = [this](ValueId id) -> std::optional<ValueId> {
    if (is(id, Op::to_real) && type((*this)[id].arg[0]) == Type::integer) return (*this)[id].arg[0];
    if (is(id, Op::real_const) && is_small_integer((*this)[id].real)) return integer(static_cast<std::int64_t>((*this)[id].real));
    return std::nullopt;
  };
  if (op == Op::add || op == Op::sub || op == Op::min || op == Op::max) {  // exact in integers, whose sums have a normal form
    const std::optional<ValueId> x = integer_of(a), y = integer_of(b);
    const bool is_sum = op == Op::add || op == Op::sub;  // of long ones each is rounded first
    const bool rounds = x && y && is_sum && (is_long_[*x] != 0 || is_long_[*y] != 0);
    const bool overflows = x && y && is_sum && reach(combine(linear(*x), linear(*y), 1)) > max_reach;
    if (x && y && !rounds && !overflows) return to_real(make(op, *x, *y));
  }
  switch (op) {
    case Op::add:
      sort_pair(a, b);
      if (is_const(b, 0)) return a;
      if (a == b) return make(Op::mul, real(2), a);
      if (is(b, Op::neg)) return make(Op::sub, a, operand(b));
      if (is(a, Op::neg)) return make(Op::sub, b, operand(a));
      break;
    case Op::sub:
      if (is_const(b)) return make(Op::add, a, real(-(*this)[b].real));
      if (is_const(a, 0)) return make(Op::neg, b);
      if (is(b, Op::neg)) return make(Op::add, a, operand(b));
      break;
    case Op::mul:
      sort_pair(a, b);
      if (is_const(b)) std::swap(a, b);
      if (is_const(a, 1)) return b;
      if (is_const(a, -1)) return make(Op::neg, b);
      if (is_const(a) && is(b, Op::neg)) return make(Op::mul, real(-(*this)[a].real), operand(b));
      if (is(a, Op::neg)) return make(Op::neg, make(Op::mul, operand(a), b));
      if (is(b, Op::neg)) return make(Op::neg, make(Op::mul, a, operand(b)));
      break;
    case Op::div:
      if (const std::optional<double> divisor = const_value(b); divisor && is_power_of_two(*divisor))
        return make(Op::mul, real(1 / *divisor), a);
      break;
    case Op::min:
    case Op::max:
      if (a == b) return a;
      break;
    default:
      break;
  }
  return intern(op, a, b);
}

ValueId Graph::make_pow(ValueId x, ValueId exponent) {
  if (const std::optional<double> known = const_value(exponent)) {
    if (*known == 0) return real(1);
    if (*known == 1) return x;
    if (*known == 2) return make(Op::mul, x, x);
    if (*known == -1) return make(Op::div, real(1), x);
  }
  return intern(Op::pow, x, exponent);
}

ValueId Graph::make_unary(Op op, ValueId a) {
  const Instr instr = (*this)[a];
  const bool from_integer = instr.op == Op::to_real && type(instr.arg[0]) == Type::integer;
  switch (op) {
    case Op::neg:
      if (instr.op == Op::neg) return instr.arg[0];
      if (instr.op == Op::mul && is_const(instr.arg[0])) return make(Op::mul, real(-(*this)[instr.arg[0]].real), instr.arg[1]);
      if (from_integer && bounds_[instr.arg[0]].low > -0x1p63) return to_real(make(Op::neg, instr.arg[0]));
      break;
    case Op::abs:
      if (instr.op == Op::abs) return a;
      if (instr.op == Op::neg) return make(Op::abs, instr.arg[0]);
      if (from_integer && bounds_[instr.arg[0]].low > -0x1p63) return to_real(make(Op::abs, instr.arg[0]));
      break;
    case Op::floor:
      if (from_integer || instr.op == Op::floor) return a;
      break;
    case Op::stop_gradient:
      if (instr.op == Op::stop_gradient || instr.op == Op::to_real) return a;  // nothing to stop
      break;
    case Op::to_float32:
      if (instr.op == op || instr.op == Op::to_bfloat16 || instr.op == Op::to_float16) return a;
      break;
    case Op::to_bfloat16:
    case Op::to_float16:
      if (instr.op == op) return a;
      if (instr.op == Op::to_float32) return make(op, instr.arg[0]);
      break;
    case Op::to_real:
      if (type(a) == Type::real) return a;
      if (instr.op == Op::to_integer && type(instr.arg[0]) == Type::boolean) return make(Op::to_real, instr.arg[0]);
      break;
    case Op::to_integer:
      if (type(a) == Type::integer) return a;
      if (from_integer) return instr.arg[0];
      break;
    case Op::to_boolean:
      if (type(a) == Type::boolean) return a;
      return make(Op::ne, a, type(a) == Type::integer ? integer(0) : real(0));
    default:
      break;
  }
  return intern(op, a);
}

ValueId Graph::make_select(ValueId condition, ValueId if_true, ValueId if_false) {
  if (const std::optional<double> known = const_value(condition)) return *known != 0 ? if_true : if_false;
  if (if_true == if_false) return if_true;
  if (is(condition, Op::logical_not)) return make(Op::select, (*this)[condition].arg[0], if_false, if_true);
  if (is(condition, Op::ne)) {
    const Instr flipped = (*this)[condition];
    return make(Op::select, make(Op::eq, flipped.arg[0], flipped.arg[1]), if_false, if_true);
  }
  if (const Instr& inner = (*this)[if_true]; inner.op == Op::select && inner.arg[0] == condition) {
    return make(Op::select, condition, inner.arg[1], if_false);
  }
  if (const Instr& inner = (*this)[if_false]; inner.op == Op::select && inner.arg[0] == condition) {
    return make(Op::select, condition, if_true, inner.arg[2]);
  }
  if (type(if_true) == Type::boolean) {
    if (is_const(if_true)) {
      return (*this)[if_true].integer != 0 ? make(Op::logical_or, condition, if_false)
                                           : make(Op::logical_and, make_not(condition), if_false);
    }
    if (is_const(if_false)) {
      return (*this)[if_false].integer != 0 ? make(Op::logical_or, make_not(condition), if_true)
                                            : make(Op::logical_and, condition, if_true);
    }
  }
  return intern(Op::select, condition, if_true, if_false);
}

}  // namespace foveal::scoring
