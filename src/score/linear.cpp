#include "score/linear.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace foveal::scoring {

namespace {

/// a + scale * b, or the largest number if that overflows.
std::int64_t sum(std::int64_t a, std::int64_t scale, std::int64_t b) {
  std::int64_t product = 0, total = 0;
  if (!__builtin_mul_overflow(scale, b, &product) && !__builtin_add_overflow(a, product, &total)) return total;
  return std::numeric_limits<std::int64_t>::max();
}

}  // namespace

bool Linear::same_terms(const Linear& other) const {
  if (terms.size() != other.terms.size()) return false;
  for (std::size_t i = 0; i < terms.size(); ++i)
    if (terms[i].atom != other.terms[i].atom || terms[i].coefficient != other.terms[i].coefficient) return false;
  return true;
}

std::int64_t Linear::of(ValueId atom) const {
  const auto term = std::find_if(terms.begin(), terms.end(), [atom](const Term& t) { return t.atom == atom; });
  return term == terms.end() ? 0 : term->coefficient;
}

Linear Linear::without(ValueId atom) const {
  Linear rest = *this;
  std::erase_if(rest.terms, [atom](const Term& term) { return term.atom == atom; });
  return rest;
}

Linear combine(const Linear& a, const Linear& b, std::int64_t scale) {
  Linear total;
  total.constant = sum(a.constant, scale, b.constant);
  auto left = a.terms.begin();
  auto right = b.terms.begin();
  while (left != a.terms.end() || right != b.terms.end()) {
    if (right == b.terms.end() || (left != a.terms.end() && left->atom < right->atom)) {
      total.terms.push_back(*left++);
    } else if (left == a.terms.end() || right->atom < left->atom) {
      if (scale != 0) total.terms.push_back({right->atom, sum(0, scale, right->coefficient)});
      ++right;
    } else {
      const std::int64_t coefficient = sum(left->coefficient, scale, right->coefficient);
      if (coefficient != 0) total.terms.push_back({left->atom, coefficient});
      ++left, ++right;
    }
  }
  return total;
}

Linear scaled(const Linear& a, std::int64_t scale) { return combine(Linear{}, a, scale); }

std::optional<Linear> sum_of(const Instr& instr, const Linear& a, const Linear& b) {
  switch (instr.op) {
    case Op::integer_const:
      return Linear{{}, instr.integer};
    case Op::add:
      return combine(a, b, 1);
    case Op::sub:
      return combine(a, b, -1);
    case Op::neg:
      return scaled(a, -1);
    case Op::mul:
      if (a.is_constant()) return scaled(b, a.constant);
      if (b.is_constant()) return scaled(a, b.constant);
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

base::IdVector<Linear> linear_forms(const Program& program, const base::IdVector<char>& whole) {
  base::IdVector<Linear> forms(program.size());
  const auto of = [&](ValueId id) { return id < 0 ? Linear{} : forms[id]; };
  for (ValueId id = 0; id < program.size(); ++id) {
    const Instr& instr = program[id];
    if (instr.type != Type::integer) continue;
    const bool is_whole = whole.size() > 0 && whole[id];
    const auto sum = is_whole ? std::nullopt : sum_of(instr, of(instr.arg[0]), of(instr.arg[1]));
    forms[id] = sum && is_small(*sum) ? *sum : Linear{{{id, 1}}, 0};
  }
  return forms;
}

std::optional<Linear> in_symbols(const Program& program, const Linear& sum) {
  Linear symbols = sum;
  for (Linear::Term& term : symbols.terms) {
    const Op op = program[term.atom].op;
    if (!is_position(op)) return std::nullopt;
    term.atom = static_cast<ValueId>(op);
  }
  std::ranges::sort(symbols.terms, {}, &Linear::Term::atom);
  return symbols;
}

std::vector<Linear> without_abs(const Program& program, const base::IdVector<Linear>& forms, const Linear& sum) {
  for (const Linear::Term& term : sum.terms) {
    if (program[term.atom].op != Op::abs || term.coefficient != 1) continue;
    const Linear rest = sum.without(term.atom);
    const Linear& inside = forms[program[term.atom].arg[0]];
    return {combine(rest, inside, 1), combine(rest, inside, -1)};
  }
  return {sum};
}

bool is_within(const Linear& a, std::size_t terms, std::int64_t magnitude) {
  const auto within = [magnitude](std::int64_t x) { return -magnitude <= x && x <= magnitude; };
  return a.terms.size() <= terms && within(a.constant) &&
         std::all_of(a.terms.begin(), a.terms.end(), [&](const Linear::Term& term) { return within(term.coefficient); });
}

std::int64_t content(const Linear& a) {
  std::int64_t divisor = 0;
  for (const Linear::Term& term : a.terms) divisor = std::gcd(divisor, term.coefficient);
  return divisor;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

std::int64_t floor_modulo(std::int64_t a, std::int64_t b) {
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

}  // namespace foveal::scoring
