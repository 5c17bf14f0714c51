// Values as products, whose uniform factors are hoisted out of the loops over pairs, and scores that are sums.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/score/score_writer.h"

namespace foveal::cuda {

Writer::Hoisted Writer::hoist_constant(ValueId id) const {
  if (id != given_.tanh && !given_text(id).empty()) return {base::join("v", id)};
  const Product product = product_of(id);
  if (!scales(product) || is_score(product)) return {base::join("v", id)};
  const std::string constant = real_text(product.constant);
  if (is_multiple_of_tanh(product)) return {"at.tanh", constant};
  return {product_text({1.0, product.factors, product.rest}), constant};
}

Writer::Hoisted Writer::hoist_uniform(ValueId id) const {
  if (!given_text(id).empty()) return {base::join("v", id)};
  if (regroups_ && is_uniform(id)) return {"1", base::join("v", id), {id}};
  const Product product = product_of(id);
  const auto [rest, uniform] = rest_and_factor(product);
  if (uniform.empty()) return {rest};
  return {rest, uniform, factors_of(product)};
}

Writer::Hoisted Writer::hoist_from_slope(ValueId id) const {
  const Hoisted apart = hoist_uniform(id);
  const auto of_head = [&](ValueId value) { return program_.depends_on(value, scoring::depends_head); };
  const bool differs =
      problem_.heads_q != problem_.heads_kv && std::any_of(apart.uniform_needs.begin(), apart.uniform_needs.end(), of_head);
  return differs ? Hoisted{base::join("v", id)} : apart;
}

Writer::Hoisted Writer::hoist_from_factor(ValueId id) const {
  if (!given_text(id).empty()) return {base::join("v", id)};
  Product product = product_of(id);
  const Instr& sum = program_[product.rest[0]];
  if (product.rest.size() == 1 && sum.op == Op::add && sum.type == Type::real && given_text(product.rest[0]).empty()) {
    Product first, second;
    multiply(first, sum.arg[0]);
    multiply(second, sum.arg[1]);
    if (const double constant = second.constant; std::isnormal(constant) && constant != 1) {
      first.constant /= constant;
      second.constant = 1;
      product.constant *= constant;
      return {base::join("(", product_text(first), " + ", product_text(second), ")"), product_text({product.constant, product.factors, {}}),
              factors_of(product)};
    }
  }
  return hoist_uniform(id);
}

std::optional<Writer::ScoreSum> Writer::sum_with_score(ValueId id) const {
  struct Term {
    ValueId value;
    bool negative;
  };
  std::vector<Term> offsets;
  std::optional<Product> score;
  if (!regroups_) return {};
  while (!score) {  // follow the operand that depends on the score; the other one is an offset
    const Instr& sum = program_[id];
    if ((sum.op != Op::add && sum.op != Op::sub) || sum.type != Type::real || !given_text(id).empty()) return {};
    const bool less = sum.op == Op::sub;
    const bool first = program_.depends_on(sum.arg[0], scoring::depends_score);
    const ValueId on = sum.arg[first ? 0 : 1], other = sum.arg[first ? 1 : 0];
    if (program_.depends_on(other, scoring::depends_score) || (less && !first)) return {};
    offsets.push_back({other, less});
    if (const Product product = product_of(on); is_score(product)) score = product;
    id = on;
    if (problem_.pass == Pass::backward) break;
  }
  if (!score) return {};
  constexpr int most = 6;
  int operations = 0;
  for (const Term& term : offsets) operations += operations_of_pairs(term.value);
  ScoreSum found{.gain = {"", rest_and_factor(*score).second, factors_of(*score)},
                 .is_long = problem_.pass == Pass::forward && operations > most,
                 .gain_is_plain = scales(*score) && score->factors.empty() && score->constant >= 1};
  const auto rank = [&](const Term& term) {
    const Varies over = scoring::varies(program_, term.value);
    return over == Varies::uniform || over == Varies::row ? 0 : forms_[term.value].run > 0 ? 1 : 2;
  };
  if (offsets.size() > 1) std::stable_sort(offsets.begin(), offsets.end(), [&](const Term& a, const Term& b) { return rank(a) < rank(b); });
  for (const Term& term : offsets) {
    ScoreSum::Offset offset{hoist_uniform(term.value), "1", term.value};
    if (offsets.size() > 1 && !is_uniform(term.value)) {
      std::vector<ValueId> factors{term.value};
      if (given_text(term.value).empty()) std::tie(offset.row, offset.term.rest, factors) = row_and_rest(product_of(term.value));
      if (factors.size() == 1 && scoring::varies(program_, factors[0]) == Varies::column) offset.column = factors[0];
    }
    if (term.negative) offset.term.uniform = base::join("-(", offset.term.uniform, ")");
    found.offsets.push_back(offset);
  }
  return found;
}

int Writer::operations_of_pairs(ValueId id) const {
  const auto at_pairs = [&](ValueId value) {
    return program_[value].type == Type::real && program_[value].op != Op::read && scoring::varies(program_, value) == Varies::pair;
  };
  const auto needed = scoring::ancestors(program_, {id}, at_pairs);
  int count = 0;
  for (ValueId value = 0; value < needed.size(); ++value) count += needed[value] && at_pairs(value);
  return count;
}

std::tuple<std::string, std::string, std::vector<ValueId>> Writer::row_and_rest(const Product& product) const {
  std::string row, rest;
  std::vector<ValueId> factors;
  const auto times = [](std::string& text, ValueId id) { text += base::join(text.empty() ? "v" : " * v", id); };
  for (const ValueId id : product.rest) {
    const Instr& instr = program_[id];
    const bool apart = instr.op == Op::mul && instr.type == Type::real && given_text(id).empty() && !decides_[id];
    for (const ValueId factor : apart ? std::vector{instr.arg[0], instr.arg[1]} : std::vector{id}) {
      const bool of_row = scoring::varies(program_, factor) == Varies::row;
      times(of_row ? row : rest, factor);
      if (!of_row) factors.push_back(factor);
    }
  }
  if (row.empty() || rest.empty()) return {"1", base::join("(", rest_and_factor({1.0, {}, product.rest}).first, ")"), factors};
  return {base::join("(", row, ")"), base::join("(", rest, ")"), factors};
}

std::optional<ValueId> Writer::tanh_of_score() const {
  std::optional<ValueId> found;
  for (ValueId id = 0; id < program_.size(); ++id) {
    if (program_[id].op != Op::tanh || !is_score(product_of(program_[id].arg[0]))) continue;
    if (found) return {};
    found = id;
  }
  return regroups_ ? found : std::nullopt;
}

std::string Writer::tanh_factor(ValueId tanh) const {
  const ValueId argument = program_[tanh].arg[0];
  return body({argument}) + base::join("  return ", rest_and_factor(product_of(argument)).second, ";\n");
}

std::string Writer::tanh_times(ValueId value) const {
  const Product product = product_of(value);
  if (!is_multiple_of_tanh(product) || product.factors.empty()) return "  return 1;\n";
  return body(factors_of(product)) + base::join("  return ", rest_and_factor({1.0, product.factors, {}}).second, ";\n");
}

std::vector<ValueId> Writer::factors_of(const Product& product) {
  std::vector<ValueId> ids;
  for (const Product::Factor& factor : product.factors) ids.push_back(factor.id);
  return ids;
}

Writer::Product Writer::product_of(ValueId id) const {
  Product product;
  multiply(product, id, true);
  return product;
}

void Writer::multiply(Product& product, ValueId id, bool whole) const {
  const Instr& instr = program_[id];
  const auto [a, b, unused] = instr.arg;
  const bool divides = instr.op == Op::div, multiplies = instr.op == Op::mul && instr.type == Type::real;
  // NOLINTNEXTLINE(bugprone-branch-clone): the order of the branches matters
  if (!regroups_ || decides_[id] || is_uniform(id) || !(whole || given_text(id).empty())) {
    product.rest.push_back(id);
  } else if (instr.type == Type::real && instr.op == Op::neg) {
    product.constant = -product.constant;
    multiply(product, a);
  } else if (multiplies && is_uniform(a)) {
    multiply_uniform(product, a, false);
    multiply(product, b);
  } else if ((multiplies || divides) && is_uniform(b)) {
    multiply_uniform(product, b, divides);
    multiply(product, a);
  } else if (multiplies && (has_uniform_factor(a) || has_uniform_factor(b))) {
    multiply(product, a);
    multiply(product, b);
  } else {
    product.rest.push_back(id);
  }
}

bool Writer::has_uniform_factor(ValueId id) const {
  const Product product = product_of(id);
  return product.constant != 1 || !product.factors.empty();
}

void Writer::multiply_uniform(Product& product, ValueId id, bool divides) const {
  const Instr& value = program_[id];
  if (value.op == Op::real_const) {
    product.constant = divides ? product.constant / value.real : product.constant * value.real;
    constexpr double rounding = 4 * std::numeric_limits<double>::epsilon();  // x * c / c is x
    if (std::abs(product.constant - 1) <= rounding) product.constant = 1;
  } else if (value.op == Op::div && program_[value.arg[0]].op == Op::real_const) {
    multiply_uniform(product, value.arg[0], divides);
    multiply_uniform(product, value.arg[1], !divides);
  } else {
    const auto opposite = std::find_if(product.factors.begin(), product.factors.end(),
                                       [&](const Product::Factor& factor) { return factor.id == id && factor.divides != divides; });
    if (opposite != product.factors.end()) {
      product.factors.erase(opposite);
    } else {
      product.factors.push_back({id, divides});
    }
  }
}

std::pair<std::string, std::string> Writer::rest_and_factor(const Product& product) const {
  std::string rest, uniform;
  const auto times = [](std::string& text, const std::string& factor) { text += (text.empty() ? "" : " * ") + factor; };
  for (const ValueId id : product.rest) {
    const bool score = program_[id].op == Op::score;
    times(rest, score ? "score.raw" : base::join("v", id));
    if (score) times(uniform, "score.scale");
  }
  if (product.constant != 1) times(uniform, real_text(product.constant));
  for (const auto& [id, divides] : product.factors)
    times(uniform, divides ? base::join("fv_divide(real(1), v", id, ")") : base::join("v", id));
  return {product.rest.size() > 1 ? base::join("(", rest, ")") : rest, uniform};
}

std::string Writer::product_text(const Product& product) const {
  const auto [rest, factor] = rest_and_factor(product);
  if (rest.empty()) return factor;
  return factor.empty() ? rest : base::join("(", rest, " * (", factor, "))");
}

}  // namespace foveal::cuda
