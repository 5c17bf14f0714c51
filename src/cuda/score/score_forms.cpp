#include "cuda/score/score_forms.h"

#include <algorithm>
#include <cmath>

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
    : IndexForms(program, problem.score->params, problem::bounds_of(problem, program)),
      problem_(problem),
      given_(given),
      products_(program, size_of(problem.dtype) == 2, known_values(program, given)),
      columns_(scoring::column_forms(program, problem.attention.kv_offset)),
      doubles_(double_values(problem, program)) {}

bool ScoreForms::is_in_double(ValueId id) const {
  const Instr& instr = program()[id];
  if (doubles_[id]) return true;
  const auto is_double = [&](ValueId arg) { return arg >= 0 && doubles_[arg]; };
  return instr.op != Op::read && scoring::is_discrete(instr.op, instr.type, Type::real) &&
         std::any_of(instr.arg.begin(), instr.arg.end(), is_double);
}

bool ScoreForms::is_small_integer(ValueId id) const {
  const Interval& bounds = this->bounds(id);
  constexpr double limit = 1 << 22;
  return program()[id].type == Type::integer && !is_uniform(id) && bounds.low >= -limit && bounds.high <= limit;
}

base::IdVector<char> ScoreForms::needed_for(const std::vector<ValueId>& outputs) const {
  return scoring::ancestors(program(), outputs, [this](ValueId id) { return !is_given(id); });
}

int ScoreForms::instructions_for(const std::vector<ValueId>& outputs) const {
  const auto needed = needed_for(outputs);
  int count = 0;
  for (ValueId id = 0; id < needed.size(); ++id)
    if (needed[id] && !is_given(id) && program()[id].type == Type::real && !is_uniform(id))
      count += scoring::row(program()[id].op).gpu.instructions;
  return count;
}

bool ScoreForms::has_uniform_factor(const Product& product) const {
  const auto is_raw = [&](ValueId id) { return program()[id].op == Op::score; };
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
  const auto of_head = [&](const Product::Factor& factor) { return program().depends_on(factor.id, scoring::depends_head); };
  const bool grouped = problem_.heads_q != problem_.heads_kv;
  if (product && grouped && std::any_of(product->factors.begin(), product->factors.end(), of_head)) return {};
  return product;
}

std::optional<ReadFactor> ScoreForms::hoisted_factor(ValueId id) const {
  if (is_given(id)) return {};
  ReadFactor factor{product_of(id)};
  Product& product = factor.product;
  const Instr& sum = program()[product.rest[0]];
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
  constexpr std::size_t any = -1;
  return scoring::sum_with_score(products_, columns_, id, problem_.pass == Pass::backward ? 1 : any);
}

bool ScoreForms::is_affine(ValueId value) const {
  const Product product = product_of(value);
  if (product.rest.size() != 1) return false;
  const Instr& rest = program()[product.rest[0]];
  if (rest.op != Op::to_real || !is_small_integer(rest.arg[0])) return false;
  const Linear* const sum = sum_of(rest.arg[0]);
  return sum != nullptr && is_of_places(*sum);
}

}  // namespace foveal::cuda
