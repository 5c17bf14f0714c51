// Simplification rules of booleans: negation, chains of & and |, comparisons of linear forms.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "score/graph.h"
#include "score/op_table.h"

namespace foveal::scoring {

ValueId Graph::make_not(ValueId a) {
  if (const std::optional<double> known = const_value(a)) return boolean(*known == 0);
  const Instr instr = (*this)[a];
  if (instr.op == Op::logical_not) return instr.arg[0];
  if (instr.op == Op::eq) return intern(Op::ne, instr.arg[0], instr.arg[1]);
  if (instr.op == Op::ne) return intern(Op::eq, instr.arg[0], instr.arg[1]);
  if ((instr.op == Op::lt || instr.op == Op::le) && type(instr.arg[0]) == Type::integer) {
    if (std::optional<Linear> sum = difference(a)) {  // not (d <= 0)  is  1 - d <= 0
      Linear opposite = negated(*sum);
      opposite.constant += 1;
      if (fits(opposite))
        if (const std::optional<ValueId> simple = compare_to_zero(Op::le, opposite)) return *simple;
    }
    return intern(instr.op == Op::lt ? Op::le : Op::lt, instr.arg[1], instr.arg[0]);
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

/// d such that the integer comparison is d <= 0.
std::optional<Linear> Graph::difference(ValueId comparison) const {
  const Instr& instr = (*this)[comparison];
  if ((instr.op != Op::lt && instr.op != Op::le) || type(instr.arg[0]) != Type::integer) return std::nullopt;
  Linear sum = combine(linear(instr.arg[0]), linear(instr.arg[1]), -1);
  if (!fits(sum)) return std::nullopt;  // combine() may have saturated
  if (instr.op == Op::lt) sum.constant += 1;
  return sum;
}

ValueId Graph::make_junction(Op op, ValueId a, ValueId b) {
  const bool is_and = op == Op::logical_and;
  constexpr std::size_t max_operands = 32;
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
  // Of two comparisons of one sum with constants, the stronger (&) or the weaker (|) remains; opposite ones may decide the chain.
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
  std::sort(kept.begin(), kept.end(), [this](ValueId x, ValueId y) {  // cheap ones first
    return depth_[x] != depth_[y] ? depth_[x] < depth_[y] : before(x, y);
  });
  ValueId result = kept.front();
  for (std::size_t i = 1; i < kept.size(); ++i) result = intern(op, result, kept[i]);
  return result;
}

/// if_false where `flag` is false, if_true where it is true.
ValueId Graph::from_truth_table(ValueId flag, bool if_false, bool if_true) {
  if (if_false == if_true) return boolean(if_true);
  return if_true ? flag : make_not(flag);
}

ValueId Graph::make_comparison(Op op, ValueId a, ValueId b) {
  if (type(a) == Type::real) return make_real_comparison(op, a, b);
  Linear gap = combine(linear(a), linear(b), -1);
  if (op == Op::lt && fits(gap)) gap.constant += 1;
  if (fits(gap))
    if (const std::optional<ValueId> simple = compare_to_zero(op == Op::lt ? Op::le : op, gap)) return *simple;
  if (op == Op::eq || op == Op::ne) sort_pair(a, b);
  return intern(op, a, b);  // as it is written
}

ValueId Graph::make_real_comparison(Op op, ValueId a, ValueId b) {
  const auto source = [this](ValueId id, Type from) { return is(id, Op::to_real) && type(operand(id)) == from ? operand(id) : -1; };
  const auto compare = [op](double x, double y) { return row(op).value(Type::boolean, x, y, 0) != 0; };
  if (const ValueId flag = source(a, Type::boolean); flag >= 0 && is_const(b))
    return from_truth_table(flag, compare(0, *const_value(b)), compare(1, *const_value(b)));
  if (const ValueId flag = source(b, Type::boolean); flag >= 0 && is_const(a))
    return from_truth_table(flag, compare(*const_value(a), 0), compare(*const_value(a), 1));
  const ValueId left = source(a, Type::integer), right = source(b, Type::integer);
  const bool both_long = left >= 0 && right >= 0 && is_long_[left] != 0 && is_long_[right] != 0;  // which are rounded first
  if (left >= 0 && right >= 0 && !both_long) return make(op, left, right);
  // An integer against a real constant: the constant is rounded to an integer for which the comparison is equivalent.
  const std::optional<double> limit = left >= 0 ? const_value(b) : const_value(a);
  if (const ValueId number = std::max(left, right); number >= 0 && limit && std::abs(*limit) < 1e9) {
    const auto whole = [this](double value) { return integer(static_cast<std::int64_t>(value)); };
    if (op == Op::eq || op == Op::ne) return *limit == std::floor(*limit) ? make(op, number, whole(*limit)) : boolean(op == Op::ne);
    if (left >= 0) return make(Op::le, number, whole(op == Op::le ? std::floor(*limit) : std::ceil(*limit) - 1));
    return make(Op::le, whole(op == Op::le ? std::ceil(*limit) : std::floor(*limit) + 1), number);
  }
  if (op == Op::eq || op == Op::ne) sort_pair(a, b);
  return intern(op, a, b);
}

/// d op 0 for op in {le, eq, ne}. Nothing where every way to write it might overflow.
std::optional<ValueId> Graph::compare_to_zero(Op op, Linear d) {
  if (d.is_constant()) return boolean(op == Op::le ? d.constant <= 0 : (d.constant == 0) == (op == Op::eq));
  const std::int64_t divisor = content(d);
  if (op != Op::le && d.constant % divisor != 0) return boolean(op == Op::ne);
  for (Linear::Term& term : d.terms) term.coefficient /= divisor;
  d.constant = -floor_divide(-d.constant, divisor);
  if (op != Op::le && leading_term(d).coefficient < 0) d = negated(d);
  const Linear::Term& first = d.terms[0];
  if (d.terms.size() == 1 && is(first.atom, Op::to_integer) && type(operand(first.atom)) == Type::boolean) {
    const auto holds = [&](std::int64_t truth) {
      const std::int64_t sum = first.coefficient * truth + d.constant;
      return op == Op::le ? sum <= 0 : (sum == 0) == (op == Op::eq);
    };
    return from_truth_table(operand(first.atom), holds(0), holds(1));
  }
  if (op == Op::le && d.terms.size() == 1 && is(first.atom, Op::abs))
    if (const std::optional<ValueId> simple = compare_abs(d)) return simple;
  return compare_sides(op, d);
}

/// d <= 0 of c - abs(x) or abs(x) - c, as two comparisons of x. Nothing where these would hold more of abs, whose comparisons would double
/// at each level, or might overflow.
std::optional<ValueId> Graph::compare_abs(const Linear& d) {
  const Linear inner = linear(operand(d.terms[0].atom));
  const bool at_most = d.terms[0].coefficient > 0;
  if (at_most && d.constant > 0) return boolean(false);
  if (!at_most && d.constant <= 0) return boolean(true);
  if (std::ranges::any_of(inner.terms, [this](const Linear::Term& term) { return is(term.atom, Op::abs); })) return std::nullopt;
  Linear low = negated(inner), high = inner;  // abs(x) <= w: x - w <= 0 and -x - w <= 0;  abs(x) >= c: c - x <= 0 or c + x <= 0
  low.constant += d.constant;
  high.constant += d.constant;
  const std::optional<ValueId> first = compare_to_zero(Op::le, low), second = compare_to_zero(Op::le, high);
  if (!first || !second) return std::nullopt;
  return make(at_most ? Op::logical_and : Op::logical_or, *first, *second);
}

/// Positive terms to the left, negative ones to the right; but a number that may have 64 bits stays alone on its side, as what is added to
/// it might overflow: kv_idx - 10 <= limit[q_idx].
std::optional<ValueId> Graph::compare_sides(Op op, const Linear& d) {
  const auto is_large = [this](const Linear::Term& term) { return reach({{term}, 0}) > max_reach; };
  const auto large = std::ranges::find_if(d.terms, is_large);
  const bool alone = std::ranges::count_if(d.terms, is_large) == 1;
  Linear left, right;
  for (const Linear::Term& term : d.terms) {
    if (alone ? (term.atom == large->atom) == (large->coefficient > 0) : term.coefficient > 0)
      left.terms.push_back(term);
    else
      right.terms.push_back({term.atom, -term.coefficient});
  }
  const bool two_sides = !left.terms.empty() && !right.terms.empty();
  if (two_sides && op == Op::le && d.constant == 1)
    op = Op::lt;
  else if (right.terms.empty() || (two_sides && (alone ? large->coefficient > 0 : d.constant < 0)))
    right.constant = -d.constant;
  else
    left.constant = d.constant;
  for (const Linear* side : {&left, &right}) {
    const bool is_atom = side->terms.size() == 1 && side->terms[0].coefficient == 1 && side->constant == 0;
    if (!is_atom && reach(*side) > max_reach) return std::nullopt;
  }
  return intern(op, from_linear(left), from_linear(right));
}

}  // namespace foveal::scoring
