#include "cuda/score/score_forms.h"

#include <algorithm>
#include <cmath>

#include "score/bounds.h"
#include "score/discrete.h"
#include "score/op_table.h"

namespace foveal::cuda {
namespace {

base::IdVector<char> known_values(const Program& program, const Given& given) {
  base::IdVector<char> known(program.size(), false);
  for (const auto* values : {&given.lines.walk, &given.lines.diagonal, &given.rows, &given.pair_reads, &given.tiled})
    for (const ValueId id : *values) known[id] = true;
  if (given.tanh) known[*given.tanh] = true;
  return known;
}

}  // namespace

ScoreForms::ScoreForms(const Problem& problem, const Program& program, const Given& given)
    : problem_(problem),
      program_(program),
      given_(given),
      products_(program, size_of(problem.dtype) == 2, known_values(program, given)),
      bounds_(bounds_of(program, problem)),
      linear_(scoring::linear_forms(program)),
      columns_(scoring::column_forms(program, problem.attention.kv_offset)),
      doubles_(double_values(problem, program)) {}

bool ScoreForms::is_in_double(ValueId id) const {
  const Instr& instr = program_[id];
  if (doubles_[id]) return true;
  const auto is_double = [&](ValueId arg) { return arg >= 0 && doubles_[arg]; };
  return instr.op != Op::read && scoring::is_discrete(instr.op, instr.type, Type::real) &&
         std::any_of(instr.arg.begin(), instr.arg.end(), is_double);
}

bool ScoreForms::is_wide(ValueId id) const { return program_[id].type == Type::integer && !scoring::fits_32_bits(bounds_[id]); }

bool ScoreForms::is_small_integer(ValueId id) const {
  const Interval& bounds = bounds_[id];
  constexpr double limit = 1 << 22;
  return program_[id].type == Type::integer && !is_uniform(id) && bounds.low >= -limit && bounds.high <= limit;
}

base::IdVector<char> ScoreForms::needed_for(const std::vector<ValueId>& outputs) const {
  return scoring::ancestors(program_, outputs, [this](ValueId id) { return !is_given(id); });
}

int ScoreForms::instructions_for(const std::vector<ValueId>& outputs) const {
  const auto needed = needed_for(outputs);
  int count = 0;
  for (ValueId id = 0; id < needed.size(); ++id)
    if (needed[id] && !is_given(id) && program_[id].type == Type::real && !is_uniform(id))
      count += scoring::row(program_[id].op).gpu.instructions;
  return count;
}

bool ScoreForms::has_uniform_factor(const Product& product) const {
  const auto is_raw = [&](ValueId id) { return program_[id].op == Op::score; };
  return product.has_uniform_factor() || std::any_of(product.rest.begin(), product.rest.end(), is_raw);
}

std::optional<Product> ScoreForms::hoisted(ValueId id) const {
  if (is_given(id)) return {};
  if (regroups() && is_uniform(id)) return Product{.factors = {{id, false}}};
  return product_of(id);
}

std::optional<Product> ScoreForms::hoisted_constant(ValueId id) const {
  if (id != given_.tanh && is_given(id)) return {};
  const Product product = product_of(id);
  if (!product.scales() || is_score(product)) return {};
  return product;
}

std::optional<Product> ScoreForms::hoisted_slope(ValueId id) const {
  const auto product = hoisted(id);
  const auto of_head = [&](const Product::Factor& factor) { return program_.depends_on(factor.id, scoring::depends_head); };
  const bool grouped = problem_.heads_q != problem_.heads_kv;
  if (product && grouped && std::any_of(product->factors.begin(), product->factors.end(), of_head)) return {};
  return product;
}

std::optional<ReadFactor> ScoreForms::hoisted_factor(ValueId id) const {
  if (is_given(id)) return {};
  ReadFactor factor{product_of(id)};
  Product& product = factor.product;
  const Instr& sum = program_[product.rest[0]];
  if (product.rest.size() == 1 && sum.op == Op::add && sum.type == Type::real && !is_given(product.rest[0])) {
    Product first = products_.of_operand(sum.arg[0]), second = products_.of_operand(sum.arg[1]);
    if (const double constant = second.constant; std::isnormal(constant) && constant != 1) {
      first.constant /= constant;
      second.constant = 1;
      product.constant *= constant;
      factor.summands = {first, second};
      return factor;
    }
  }
  const auto product_alone = hoisted(id);
  return product_alone ? std::optional(ReadFactor{*product_alone}) : std::nullopt;
}

std::optional<ScoreSum> ScoreForms::sum_with_score(ValueId id) const {
  struct Term {
    ValueId value;
    bool negative;
  };
  std::vector<Term> terms;
  std::optional<Product> score;
  if (!regroups()) return {};
  while (!score) {  // follow the operand that depends on the score; the other one is an offset
    const Instr& sum = program_[id];
    if ((sum.op != Op::add && sum.op != Op::sub) || sum.type != Type::real || is_given(id)) return {};
    const bool less = sum.op == Op::sub;
    const bool first = program_.depends_on(sum.arg[0], scoring::depends_score);
    const ValueId on = sum.arg[first ? 0 : 1], other = sum.arg[first ? 1 : 0];
    if (program_.depends_on(other, scoring::depends_score) || (less && !first)) return {};
    terms.push_back({other, less});
    if (const Product product = product_of(on); is_score(product)) score = product;
    id = on;
    if (problem_.pass == Pass::backward) break;
  }
  if (!score) return {};
  constexpr int most = 6;
  int operations = 0;
  for (const Term& term : terms) operations += operations_of_pairs(term.value);
  ScoreSum found{.gain = *score,
                 .is_long = problem_.pass == Pass::forward && operations > most,
                 .gain_is_plain = score->scales() && score->factors.empty() && score->constant >= 1};
  const auto rank = [&](const Term& term) {
    const Varies over = scoring::varies(program_, term.value);
    return over == Varies::uniform || over == Varies::row ? 0 : columns_[term.value].run > 0 ? 1 : 2;
  };
  const bool several = terms.size() > 1;
  if (several) std::stable_sort(terms.begin(), terms.end(), [&](const Term& a, const Term& b) { return rank(a) < rank(b); });
  for (const Term& term : terms) found.offsets.push_back(offset(term.value, term.negative, !several));
  return found;
}

ScoreSum::Offset ScoreForms::offset(ValueId value, bool negative, bool alone) const {
  ScoreSum::Offset offset{.value = value, .negative = negative};
  if (alone || is_uniform(value)) return offset;
  offset.rest = {value};
  if (!is_given(value)) {
    offset.is_product = true, offset.rest.clear();
    for (const ValueId id : product_of(value).rest) {
      const Instr& instr = program_[id];
      const bool multiplies = instr.op == Op::mul && instr.type == Type::real && !is_given(id) && !decides(id);
      for (const ValueId factor : multiplies ? std::vector{instr.arg[0], instr.arg[1]} : std::vector{id})
        (scoring::varies(program_, factor) == Varies::row ? offset.row : offset.rest).push_back(factor);
    }
  }
  if (offset.rest.size() == 1 && scoring::varies(program_, offset.rest[0]) == Varies::column) offset.column = offset.rest[0];
  return offset;
}

int ScoreForms::operations_of_pairs(ValueId id) const {
  const auto at_pairs = [&](ValueId value) {
    return program_[value].type == Type::real && program_[value].op != Op::read && scoring::varies(program_, value) == Varies::pair;
  };
  const auto needed = scoring::ancestors(program_, {id}, at_pairs);
  int count = 0;
  for (ValueId value = 0; value < needed.size(); ++value) count += needed[value] && at_pairs(value);
  return count;
}

std::optional<ValueId> ScoreForms::tanh_of_score() const {
  std::optional<ValueId> found;
  for (ValueId id = 0; id < program_.size(); ++id) {
    if (program_[id].op != Op::tanh || !is_scaled_score(program_[id].arg[0])) continue;
    if (found) return {};
    found = id;
  }
  return regroups() ? found : std::nullopt;
}

}  // namespace foveal::cuda
