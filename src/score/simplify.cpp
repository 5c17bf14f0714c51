// Exact simplification, done while a value is made. See graph.h.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/check.h"
#include "score/graph.h"
#include "score/op_table.h"

namespace foveal::scoring {
namespace {

constexpr std::size_t max_terms = 16;     // of an integer sum; longer ones stay as they were written
constexpr std::size_t max_operands = 32;  // of a chain of & or |
constexpr std::int64_t max_coefficient = std::numeric_limits<std::int32_t>::max();

bool fits(const Linear& sum) {
  if (sum.terms.size() > max_terms || sum.constant > max_coefficient || sum.constant < -max_coefficient) return false;
  return std::all_of(sum.terms.begin(), sum.terms.end(),
                     [](const Linear::Term& term) { return std::abs(term.coefficient) <= max_coefficient; });
}

Linear negated(const Linear& sum) { return scaled(sum, -1); }

/// Of integers.
bool may_leave_64_bits(Op op) {
  return op == Op::add || op == Op::sub || op == Op::mul || op == Op::floor_div || op == Op::neg || op == Op::abs || op == Op::shift_left;
}

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
      return make_unary(op, a);
  }
}

std::optional<ValueId> Graph::fold(Op op, ValueId a, ValueId b, ValueId c) {
  for (ValueId arg : {a, b, c})
    if (arg >= 0 && !is_const(arg)) return std::nullopt;
  const Type result = result_type(op, a, b);
  const double value = row(op).value(result, *const_value(a), b < 0 ? 0 : *const_value(b), c < 0 ? 0 : *const_value(c));
  if (std::isnan(value)) return std::nullopt;
  if (type(a) != Type::real && row(op).of_integers) {  // exact, where a double is not
    const std::int64_t exact = row(op).of_integers((*this)[a].integer, b < 0 ? 0 : (*this)[b].integer);
    FOVEAL_CHECK(!may_leave_64_bits(op) || std::abs(static_cast<double>(exact) - value) <= 0x1p32, "operator ", row(op).text, ": ", value,
                 " does not fit 64 bits");
    return result == Type::integer ? integer(exact) : boolean(exact != 0);
  }
  if (op == Op::select && result != Type::real) return (*this)[a].integer != 0 ? b : c;
  if (result == Type::real) return real(value);
  if (result == Type::boolean) return boolean(value != 0);
  constexpr double beyond = 0x1p62;  // of what an integer may be, which integer() says; what a conversion of more gives is undefined
  return integer(static_cast<std::int64_t>(std::clamp(value, -beyond, beyond)));
}

// Order of the terms: those that are the same for a whole tile first, then those of a row, then of a column, so that as much as possible
// of a sum is computed once for many pairs. The constant follows the first term, for the same reason.
ValueId Graph::from_linear(const Linear& sum) {
  if (sum.is_constant()) return integer(sum.constant);
  std::vector<Linear::Term> terms = sum.terms;
  std::stable_sort(terms.begin(), terms.end(), [this](const Linear::Term& x, const Linear::Term& y) {
    const auto width = [this](ValueId id) { return depends(id) & (depends_q | depends_kv | depends_score); };
    if (width(x.atom) != width(y.atom)) return width(x.atom) < width(y.atom);
    return before(x.atom, y.atom);
  });
  const auto first = std::find_if(terms.begin(), terms.end(), [](const Linear::Term& term) { return term.coefficient > 0; });
  if (first != terms.end()) std::rotate(terms.begin(), first, first + 1);

  Linear so_far;
  const auto remember = [&](ValueId id) {
    if (so_far.terms.size() != 1 || so_far.terms[0].coefficient != 1 || so_far.constant != 0) linear_.emplace(id, so_far);
    return id;
  };
  const auto scaled_atom = [&](std::int64_t coefficient, ValueId atom) {
    if (coefficient == 1) return atom;
    const ValueId id = coefficient == -1 ? intern(Op::neg, atom) : intern(Op::mul, integer(coefficient), atom);
    linear_.emplace(id, Linear{{{atom, coefficient}}, 0});
    return id;
  };
  ValueId total = -1;
  const auto add_constant = [&] {
    if (sum.constant == 0) return;
    so_far.constant = sum.constant;
    total = remember(intern(sum.constant > 0 ? Op::add : Op::sub, total, integer(std::abs(sum.constant))));
  };
  for (const Linear::Term& term : terms) {
    so_far = combine(so_far, Linear{{term}, 0}, 1);
    if (total >= 0) {
      total = remember(intern(term.coefficient > 0 ? Op::add : Op::sub, total, scaled_atom(std::abs(term.coefficient), term.atom)));
    } else if (term.coefficient < 0 && sum.constant > 0) {
      so_far.constant = sum.constant;
      total = remember(intern(Op::sub, integer(sum.constant), scaled_atom(-term.coefficient, term.atom)));
    } else {
      total = remember(scaled_atom(term.coefficient, term.atom));
      add_constant();
    }
  }
  return total;
}

ValueId Graph::make_integer(Op op, ValueId a, ValueId b) {
  switch (op) {
    case Op::add:
    case Op::sub: {
      const Linear sum = combine(linear(a), linear(b), op == Op::add ? 1 : -1);
      if (fits(sum)) return from_linear(sum);
      if (op == Op::add) sort_pair(a, b);
      return intern(op, a, b);
    }
    case Op::mul: {
      if (is_const(a)) std::swap(a, b);
      if (is_const(b)) {
        const Linear product = scaled(linear(a), (*this)[b].integer);
        if (fits(product)) return from_linear(product);
      }
      sort_pair(a, b);
      if (is_const(b)) std::swap(a, b);
      return intern(op, a, b);
    }
    case Op::floor_div:
    case Op::mod: {
      if (!is_const(b)) return intern(op, a, b);
      const std::int64_t d = (*this)[b].integer;
      if (d == 0) return integer(0);  // as every evaluation does; a 0 that is written is refused by lower()
      if (d < 0 && fits(negated(linear(b)))) {
        const ValueId flipped = make(op, make(Op::neg, a), integer(-d));
        return op == Op::mod ? make(Op::neg, flipped) : flipped;
      }
      if (d < 0) return intern(op, a, b);
      // x = d * whole + rest with 0 <= rest.constant < d:  x // d = whole + rest // d,  x % d = rest % d
      const Linear x = linear(a);
      Linear whole, rest;
      for (const Linear::Term& term : x.terms) {
        if (term.coefficient % d == 0) {
          whole.terms.push_back({term.atom, term.coefficient / d});
        } else {
          rest.terms.push_back(term);
        }
      }
      whole.constant = floor_divide(x.constant, d);
      rest.constant = floor_modulo(x.constant, d);
      if (rest.is_constant()) return op == Op::mod ? integer(rest.constant) : from_linear(whole);
      const ValueId remaining = from_linear(rest);
      const Instr inner = (*this)[remaining];
      const bool nested = (inner.op == Op::floor_div || inner.op == Op::mod) && is_const(inner.arg[1]) && (*this)[inner.arg[1]].integer > 0;
      const std::int64_t inner_divisor = nested ? (*this)[inner.arg[1]].integer : 0;
      if (op == Op::mod) {
        if (nested && inner.op == Op::mod && inner_divisor % d == 0) return make(Op::mod, inner.arg[0], b);
        if (nested && inner.op == Op::mod && inner_divisor <= d) return remaining;
        return intern(op, remaining, b);
      }
      ValueId quotient = -1;
      if (nested && inner.op == Op::floor_div && inner_divisor <= max_coefficient / d) {
        quotient = make(Op::floor_div, inner.arg[0], integer(inner_divisor * d));
      } else if (nested && inner.op == Op::mod && inner_divisor <= d) {
        quotient = integer(0);
      } else {
        quotient = intern(op, remaining, b);
      }
      return make(Op::add, from_linear(whole), quotient);
    }
    default: {  // min, max
      const Linear gap = combine(linear(a), linear(b), -1);
      if (gap.is_constant()) return (gap.constant <= 0) == (op == Op::min) ? a : b;
      sort_pair(a, b);
      const Instr inner = (*this)[a];
      if (is_const(b) && inner.op == op && is_const(inner.arg[1])) return make(op, inner.arg[0], make(op, inner.arg[1], b));
      return intern(op, a, b);
    }
  }
}

/// Shifts by constants are products and quotients, and with the lowest bits is a remainder: forms that sums and bounds know.
ValueId Graph::make_bits(Op op, ValueId a, ValueId b) {
  const bool shifts = op == Op::shift_left || op == Op::shift_right;
  if (!shifts) sort_pair(a, b);  // a constant comes last
  const bool known = is_const(b);
  const std::int64_t bits = (*this)[b].integer;
  if (shifts && known && bits >= 0 && bits < 31) {
    return make(op == Op::shift_left ? Op::mul : Op::floor_div, a, integer(std::int64_t{1} << bits));
  }
  if (known && !shifts) {
    if (bits == 0) return op == Op::bit_and ? b : a;
    if (op == Op::bit_and && bits == -1) return a;
    if (op == Op::bit_and && bits > 0 && bits < max_coefficient && (bits & (bits + 1)) == 0) return make(Op::mod, a, integer(bits + 1));
    if (op == Op::bit_xor && bits == -1) return make(Op::sub, b, a);
  }
  if (a == b && !shifts) return op == Op::bit_xor ? integer(0) : a;
  return intern(op, a, b);
}

ValueId Graph::make_real(Op op, ValueId a, ValueId b) {
  const auto integer_of = [this](ValueId id) -> std::optional<ValueId> {
    if (is(id, Op::to_real) && type((*this)[id].arg[0]) == Type::integer) return (*this)[id].arg[0];
    if (is(id, Op::real_const) && is_small_integer((*this)[id].real)) return integer(static_cast<std::int64_t>((*this)[id].real));
    return std::nullopt;
  };
  if (op == Op::add || op == Op::sub || op == Op::min || op == Op::max) {  // exact in integers, and there sums are normalised
    const std::optional<ValueId> x = integer_of(a), y = integer_of(b);
    if (x && y) return to_real(make(op, *x, *y));
  }
  const auto operand = [this](ValueId id) { return (*this)[id].arg[0]; };
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
      if (type(a) == Type::integer) {
        const Linear sum = negated(linear(a));
        return fits(sum) ? from_linear(sum) : intern(op, a);
      }
      if (instr.op == Op::neg) return instr.arg[0];
      if (instr.op == Op::mul && is_const(instr.arg[0])) return make(Op::mul, real(-(*this)[instr.arg[0]].real), instr.arg[1]);
      if (from_integer) return to_real(make(Op::neg, instr.arg[0]));
      break;
    case Op::abs:
      if (type(a) == Type::integer) {  // abs(x) = abs(-x): keep the one whose first term is positive
        Linear sum = linear(a);
        if (sum.terms.size() > 1 || linear_.contains(a)) {
          const auto first = std::min_element(sum.terms.begin(), sum.terms.end(),
                                              [this](const Linear::Term& x, const Linear::Term& y) { return before(x.atom, y.atom); });
          if (first->coefficient < 0) return make(op, from_linear(negated(sum)));
        }
        if (instr.op == Op::mod && is_const(instr.arg[1]) && (*this)[instr.arg[1]].integer > 0) return a;
      }
      if (instr.op == Op::abs) return a;
      if (instr.op == Op::neg) return make(Op::abs, instr.arg[0]);
      if (from_integer) return to_real(make(Op::abs, instr.arg[0]));
      break;
    case Op::floor:
      if (from_integer || instr.op == Op::floor) return a;
      break;
    case Op::stop_gradient:
      if (instr.op == Op::stop_gradient || instr.op == Op::to_real) return a;  // nothing to stop
      break;
    case Op::to_real:
      if (type(a) == Type::real) return a;
      if (instr.op == Op::to_integer && type(instr.arg[0]) == Type::boolean) return make(Op::to_real, instr.arg[0]);
      break;
    case Op::to_integer:
      if (type(a) == Type::integer) return a;
      if (from_integer) return instr.arg[0];
      break;
    case Op::to_int32: {
      if (instr.op == Op::to_int32) return a;
      // Sums of positions, which are below 2^31.
      const Linear sum = linear(a);
      double low = static_cast<double>(sum.constant), high = low;
      for (const Linear::Term& term : sum.terms) {
        const Op symbol = (*this)[term.atom].op;
        if (symbol < Op::batch || symbol > Op::seqlen_kv) return intern(op, a);
        (term.coefficient > 0 ? high : low) += static_cast<double>(term.coefficient) * 2147483647.0;
      }
      if (low >= -2147483648.0 && high <= 2147483647.0) return a;
      break;
    }
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

ValueId Graph::make_not(ValueId a) {
  if (const std::optional<double> known = const_value(a)) return boolean(*known == 0);
  const Instr instr = (*this)[a];
  if (instr.op == Op::logical_not) return instr.arg[0];
  if (instr.op == Op::eq) return intern(Op::ne, instr.arg[0], instr.arg[1]);
  if (instr.op == Op::ne) return intern(Op::eq, instr.arg[0], instr.arg[1]);
  if (std::optional<Linear> sum = difference(a)) {  // not (d <= 0)  is  1 - d <= 0
    Linear opposite = negated(*sum);
    opposite.constant += 1;
    if (fits(opposite)) return compare_to_zero(Op::le, opposite);
  }
  return intern(Op::logical_not, a);
}

ValueId Graph::make_xor(ValueId a, ValueId b) {
  bool flip = false;
  for (ValueId* side : {&a, &b}) {
    if (is(*side, Op::logical_not)) {
      *side = (*this)[*side].arg[0];
      flip = !flip;
    }
  }
  ValueId result = -1;
  if (a == b) {
    result = boolean(false);
  } else if (is_const(a)) {
    result = (*this)[a].integer != 0 ? make_not(b) : b;
  } else if (is_const(b)) {
    result = (*this)[b].integer != 0 ? make_not(a) : a;
  } else {
    sort_pair(a, b);
    result = intern(Op::logical_xor, a, b);
  }
  return flip ? make_not(result) : result;
}

/// d such that the integer comparison says d <= 0.
std::optional<Linear> Graph::difference(ValueId comparison) const {
  const Instr& instr = (*this)[comparison];
  if ((instr.op != Op::lt && instr.op != Op::le) || type(instr.arg[0]) != Type::integer) return std::nullopt;
  Linear sum = combine(linear(instr.arg[0]), linear(instr.arg[1]), -1);
  if (!fits(sum)) return std::nullopt;  // numbers of 64 bits: it may have been saturated
  if (instr.op == Op::lt) sum.constant += 1;
  return sum;
}

ValueId Graph::make_junction(Op op, ValueId a, ValueId b) {
  const bool is_and = op == Op::logical_and;
  std::vector<ValueId> operands;
  std::vector<ValueId> pending{b, a};
  while (!pending.empty()) {
    const ValueId next = pending.back();
    pending.pop_back();
    if (is(next, op) && operands.size() + pending.size() < max_operands) {
      pending.push_back((*this)[next].arg[1]);
      pending.push_back((*this)[next].arg[0]);
    } else if (const std::optional<double> known = const_value(next)) {
      if ((*known != 0) != is_and) return boolean(!is_and);
    } else {
      operands.push_back(next);
    }
  }
  // Two comparisons of one sum with constants: the stronger (&) or the weaker (|) one says it all; opposite ones may decide everything.
  std::vector<std::optional<Linear>> sums;
  sums.reserve(operands.size());
  for (ValueId operand : operands) sums.push_back(difference(operand));
  std::vector<bool> dropped(operands.size(), false);
  std::vector<ValueId> opposites(operands.size(), -1);
  const auto opposite = [&](std::size_t j) { return opposites[j] < 0 ? opposites[j] = make_not(operands[j]) : opposites[j]; };
  for (std::size_t i = 0; i < operands.size(); ++i) {
    for (std::size_t j = 0; j < i && !dropped[i]; ++j) {
      if (dropped[j]) continue;
      if (operands[i] == operands[j]) {
        dropped[i] = true;
      } else if (sums[i] && sums[j] && sums[i]->same_terms(*sums[j])) {
        const bool keep_i = (sums[i]->constant > sums[j]->constant) == is_and;
        dropped[keep_i ? j : i] = true;
      } else if (sums[i] && sums[j] && negated(*sums[i]).same_terms(*sums[j])) {
        const std::int64_t slack = sums[i]->constant + sums[j]->constant;
        if (is_and && slack > 0) return boolean(false);
        if (!is_and && slack <= 1) return boolean(true);
      } else if (operands[i] == opposite(j)) {
        return boolean(!is_and);
      }
    }
  }
  std::vector<ValueId> kept;
  for (std::size_t i = 0; i < operands.size(); ++i)
    if (!dropped[i]) kept.push_back(operands[i]);
  if (kept.empty()) return boolean(is_and);
  std::sort(kept.begin(), kept.end(), [this](ValueId x, ValueId y) {  // simple ones first
    const std::int32_t depth_x = depth_[static_cast<std::size_t>(x)], depth_y = depth_[static_cast<std::size_t>(y)];
    return depth_x != depth_y ? depth_x < depth_y : before(x, y);
  });
  ValueId result = kept.front();
  for (std::size_t i = 1; i < kept.size(); ++i) result = intern(op, result, kept[i]);
  return result;
}

/// The truth value that is if_false where `flag` is false and if_true where it is true.
ValueId Graph::from_truth_table(ValueId flag, bool if_false, bool if_true) {
  if (if_false == if_true) return boolean(if_true);
  return if_true ? flag : make_not(flag);
}

ValueId Graph::make_comparison(Op op, ValueId a, ValueId b) {
  if (type(a) == Type::real) {
    const auto truth = [this](ValueId id) {
      return is(id, Op::to_real) && type((*this)[id].arg[0]) == Type::boolean ? (*this)[id].arg[0] : -1;
    };
    const auto compare = [op](double x, double y) { return row(op).value(Type::boolean, x, y, 0) != 0; };
    if (const std::optional<double> limit = const_value(b); limit && truth(a) >= 0) {
      return from_truth_table(truth(a), compare(0, *limit), compare(1, *limit));
    }
    if (const std::optional<double> limit = const_value(a); limit && truth(b) >= 0) {
      return from_truth_table(truth(b), compare(*limit, 0), compare(*limit, 1));
    }
    const auto whole = [this](ValueId id) {
      return is(id, Op::to_real) && type((*this)[id].arg[0]) == Type::integer ? (*this)[id].arg[0] : -1;
    };
    if (whole(a) >= 0 && whole(b) >= 0) return make(op, whole(a), whole(b));
    // An integer against a real constant: round the constant to the last integer that compares alike.
    const ValueId number = std::max(whole(a), whole(b));
    const std::optional<double> limit = whole(a) >= 0 ? const_value(b) : const_value(a);
    if (number >= 0 && limit && std::abs(*limit) < 1e9) {
      if (op == Op::eq || op == Op::ne) {
        if (*limit != std::floor(*limit)) return boolean(op == Op::ne);
        return make(op, number, integer(static_cast<std::int64_t>(*limit)));
      }
      if (whole(a) >= 0) {
        const double top = op == Op::le ? std::floor(*limit) : std::ceil(*limit) - 1;
        return make(Op::le, number, integer(static_cast<std::int64_t>(top)));
      }
      const double bottom = op == Op::le ? std::ceil(*limit) : std::floor(*limit) + 1;
      return make(Op::le, integer(static_cast<std::int64_t>(bottom)), number);
    }
    if (op == Op::eq || op == Op::ne) sort_pair(a, b);
    return intern(op, a, b);
  }
  Linear gap = combine(linear(a), linear(b), -1);
  if (op == Op::lt && fits(gap)) gap.constant += 1;
  if (!fits(gap)) return intern(op, a, b);
  return compare_to_zero(op == Op::lt ? Op::le : op, gap);
}

/// d op 0 for op in {le, eq, ne}: positive terms to the left, negative ones to the right.
ValueId Graph::compare_to_zero(Op op, Linear d) {
  if (d.is_constant()) return boolean(op == Op::le ? d.constant <= 0 : (d.constant == 0) == (op == Op::eq));
  const std::int64_t divisor = content(d);
  if (op != Op::le && d.constant % divisor != 0) return boolean(op == Op::ne);
  for (Linear::Term& term : d.terms) term.coefficient /= divisor;
  d.constant = -floor_divide(-d.constant, divisor);
  if (op != Op::le) {
    const auto first = std::min_element(d.terms.begin(), d.terms.end(),
                                        [this](const Linear::Term& x, const Linear::Term& y) { return before(x.atom, y.atom); });
    if (first->coefficient < 0) d = negated(d);
  }
  if (const Linear::Term& term = d.terms[0];
      d.terms.size() == 1 && is(term.atom, Op::to_integer) && type((*this)[term.atom].arg[0]) == Type::boolean) {
    const auto holds = [&](std::int64_t truth) {
      const std::int64_t sum = term.coefficient * truth + d.constant;
      return op == Op::le ? sum <= 0 : (sum == 0) == (op == Op::eq);
    };
    return from_truth_table((*this)[term.atom].arg[0], holds(0), holds(1));
  }
  if (op == Op::le && d.terms.size() == 1 && is(d.terms[0].atom, Op::abs)) {
    const Linear inner = linear((*this)[d.terms[0].atom].arg[0]);
    Linear low = negated(inner), high = inner;  // abs(x) <= w: x - w <= 0 and -x - w <= 0;  abs(x) >= c: c - x <= 0 or c + x <= 0
    low.constant += d.constant;
    high.constant += d.constant;
    const bool at_most = d.terms[0].coefficient > 0;
    if (at_most && d.constant > 0) return boolean(false);
    if (!at_most && d.constant <= 0) return boolean(true);
    return make(at_most ? Op::logical_and : Op::logical_or, compare_to_zero(Op::le, low), compare_to_zero(Op::le, high));
  }
  Linear left, right;
  for (const Linear::Term& term : d.terms) (term.coefficient > 0 ? left : right).terms.push_back({term.atom, std::abs(term.coefficient)});
  if (op == Op::le && d.constant == 1 && !left.terms.empty() && !right.terms.empty())
    return intern(Op::lt, from_linear(left), from_linear(right));
  if (right.terms.empty() || (d.constant < 0 && !left.terms.empty())) {
    right.constant = -d.constant;
  } else {
    left.constant = d.constant;
  }
  return intern(op, from_linear(left), from_linear(right));
}

}  // namespace foveal::scoring
