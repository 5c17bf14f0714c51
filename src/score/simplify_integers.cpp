// Simplification rules of integers: sums in normal form, quotients and remainders by constants, bit operations.
#include <algorithm>
#include <cstdlib>

#include "score/graph.h"

namespace foveal::scoring {

// Order of terms: uniform over a tile first, then per row, then per column, so that as much as possible of a sum is hoisted. The constant
// follows the first term for the same reason.
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

/// The first in canonical order, of a sum with terms.
const Linear::Term& Graph::leading_term(const Linear& sum) const {
  return *std::ranges::min_element(sum.terms, [this](const auto& x, const auto& y) { return before(x.atom, y.atom); });
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
    case Op::mod:
      return make_quotient(op, a, b);
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

/// floor_div and mod.
ValueId Graph::make_quotient(Op op, ValueId a, ValueId b) {
  if (!is_const(b)) return intern(op, a, b);
  const std::int64_t d = (*this)[b].integer;
  if (d == 0) return integer(0);  // as in evaluation; lower() refuses a literal 0
  const Linear x = linear(a);
  if (d < 0 && fits(negated(linear(b))) && reach(x) <= max_reach) {
    const ValueId flipped = make(op, make(Op::neg, a), integer(-d));
    return op == Op::mod ? make(Op::neg, flipped) : flipped;
  }
  if (d < 0) return intern(op, a, b);
  // x = d * whole + rest with 0 <= rest.constant < d:  x // d = whole + rest // d,  x % d = rest % d
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
  if (!fits(rest) || (rest.constant != x.constant && !rest.is_constant() && reach(rest) > max_reach))
    whole.constant = 0, rest.constant = x.constant;  // what was not written might overflow
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

/// Shifts by constants become products and quotients, & with the lowest bits a remainder, which sums and bounds understand.
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

/// neg, abs and to_int32.
ValueId Graph::make_integer_unary(Op op, ValueId a) {
  const Instr instr = (*this)[a];
  const Linear sum = linear(a);
  if (op == Op::neg) return fits(negated(sum)) ? from_linear(negated(sum)) : intern(op, a);
  if (instr.op == op) return a;
  if (op == Op::abs) {
    if (sum.terms.size() > 1 || linear_.contains(a)) {  // abs(x) = abs(-x): keep the one whose first term is positive
      if (leading_term(sum).coefficient < 0) return make(op, from_linear(negated(sum)));
    }
    if (instr.op == Op::mod && is_const(instr.arg[1]) && (*this)[instr.arg[1]].integer > 0) return a;
    return instr.op == Op::neg ? make(op, instr.arg[0]) : intern(op, a);
  }
  return bounds_[a].low >= -0x1p31 && bounds_[a].high <= 0x1p31 - 1 ? a : intern(op, a);
}

}  // namespace foveal::scoring
