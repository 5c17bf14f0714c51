#include "score/product.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "score/discrete.h"
#include "score/varies.h"

namespace foveal::scoring {

std::vector<ValueId> Product::factor_values() const {
  std::vector<ValueId> ids;
  for (const Factor& factor : factors) ids.push_back(factor.id);
  return ids;
}

bool Product::scales() const { return constant > 0 && std::isfinite(constant); }

Products::Products(const Program& program, bool regroups, base::IdVector<char> known)
    : program_(program), regroups_(regroups), known_(std::move(known)), decides_(deciding_reals(program, false)) {
  const base::IdVector<char> quotients = deciding_quotients_of_scores(program);
  for (ValueId id = 0; id < program.size(); ++id) decides_[id] = decides_[id] || quotients[id];
}

Product Products::of(ValueId id) const {
  Product product;
  multiply(product, id, true);
  return product;
}

Product Products::of_operand(ValueId id) const {
  Product product;
  multiply(product, id);
  return product;
}

bool Products::is_score(const Product& product) const { return product.rest.size() == 1 && program_[product.rest[0]].op == Op::score; }

void Products::multiply(Product& product, ValueId id, bool whole) const {
  const Instr& instr = program_[id];
  const auto [a, b, unused] = instr.arg;
  const bool divides = instr.op == Op::div, multiplies = instr.op == Op::mul && instr.type == Type::real;
  // NOLINTNEXTLINE(bugprone-branch-clone): the order of the branches matters
  if (!regroups_ || decides_[id] || is_uniform(program_, id) || (known_[id] && !whole)) {
    product.rest.push_back(id);
  } else if (instr.type == Type::real && instr.op == Op::neg) {
    product.constant = -product.constant;
    multiply(product, a);
  } else if (multiplies && is_uniform(program_, a)) {
    multiply_uniform(product, a, false);
    multiply(product, b);
  } else if ((multiplies || divides) && is_uniform(program_, b)) {
    multiply_uniform(product, b, divides);
    multiply(product, a);
  } else if (multiplies && (of(a).has_uniform_factor() || of(b).has_uniform_factor())) {
    multiply(product, a);
    multiply(product, b);
  } else {
    product.rest.push_back(id);
  }
}

void Products::multiply_uniform(Product& product, ValueId id, bool divides) const {
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

}  // namespace foveal::scoring
