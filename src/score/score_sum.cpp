#include "score/score_sum.h"

#include <algorithm>

#include "score/varies.h"

namespace foveal::scoring {
namespace {

ScoreSum::Offset offset_of(const Products& products, ValueId value, bool negative, bool alone) {
  const Program& program = products.program();
  ScoreSum::Offset offset{.value = value, .negative = negative};
  if (alone || is_uniform(program, value)) return offset;
  offset.rest = {value};
  if (!products.is_known(value)) {
    offset.is_product = true, offset.rest.clear();
    for (const ValueId id : products.of(value).rest) {
      const Instr& instr = program[id];
      const bool multiplies = instr.op == Op::mul && instr.type == Type::real && !products.is_known(id) && !products.decides(id);
      for (const ValueId factor : multiplies ? std::vector{instr.arg[0], instr.arg[1]} : std::vector{id})
        (varies(program, factor) == Varies::row ? offset.row : offset.rest).push_back(factor);
    }
  }
  if (offset.rest.size() == 1 && varies(program, offset.rest[0]) == Varies::column) offset.column = offset.rest[0];
  return offset;
}

/// Real operations per pair that a value takes.
int operations_of_pairs(const Program& program, ValueId id) {
  const auto at_pairs = [&](ValueId value) {
    return program[value].type == Type::real && program[value].op != Op::read && varies(program, value) == Varies::pair;
  };
  const auto needed = ancestors(program, {id}, at_pairs);
  int count = 0;
  for (ValueId value = 0; value < needed.size(); ++value) count += needed[value] && at_pairs(value);
  return count;
}

}  // namespace

std::optional<ScoreSum> sum_with_score(const Products& products, const base::IdVector<ColumnForm>& columns, ValueId id,
                                       std::size_t most_offsets) {
  struct Term {
    ValueId value;
    bool negative;
  };
  const Program& program = products.program();
  std::vector<Term> terms;
  std::optional<Product> score;
  if (!products.regroups()) return {};
  while (!score) {  // follow the operand that depends on the score; the other one is an offset
    const Instr& sum = program[id];
    if ((sum.op != Op::add && sum.op != Op::sub) || sum.type != Type::real || products.is_known(id)) return {};
    const bool less = sum.op == Op::sub;
    const bool first = program.depends_on(sum.arg[0], depends_score);
    const ValueId on = sum.arg[first ? 0 : 1], other = sum.arg[first ? 1 : 0];
    if (program.depends_on(other, depends_score) || (less && !first) || terms.size() == most_offsets) return {};
    terms.push_back({other, less});
    if (Product product = products.of(on); products.is_score(product)) score = std::move(product);
    id = on;
  }
  const auto rank = [&](const Term& term) {
    const Varies over = varies(program, term.value);
    return over == Varies::uniform || over == Varies::row ? 0 : columns[term.value].run > 0 ? 1 : 2;
  };
  const bool several = terms.size() > 1;
  if (several) std::ranges::stable_sort(terms, {}, rank);
  ScoreSum found{.gain = *std::move(score)};
  for (const Term& term : terms) {
    found.offsets.push_back(offset_of(products, term.value, term.negative, !several));
    found.operations += operations_of_pairs(program, term.value);
  }
  return found;
}

std::optional<ValueId> tanh_of_score(const Products& products) {
  const Program& program = products.program();
  std::optional<ValueId> found;
  for (ValueId id = 0; id < program.size(); ++id) {
    if (program[id].op != Op::tanh || !products.is_score(products.of(program[id].arg[0]))) continue;
    if (found) return {};
    found = id;
  }
  return products.regroups() ? found : std::nullopt;
}

}  // namespace foveal::scoring
